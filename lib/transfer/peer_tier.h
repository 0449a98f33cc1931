// Engines of one process: which holds what, and which copies from which.
//
// A block is found from when its record has arrived until something else is about to be written
// there. A copy out of it that was begun before is named to the one that writes, which lets its
// writing wait for that copy. Nobody waits for a lock that is held over a wait, and a copy between
// engines waits for nothing but copies between engines that began earlier: no circle.
#ifndef MOERT_LIB_TRANSFER_PEER_TIER_H_
#define MOERT_LIB_TRANSFER_PEER_TIER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "moert/parallel/peer_tier.h"

namespace moert {

/// Thread-safe. Callbacks run under its lock and must not call it.
class PeerTier {
 public:
  using Holder = int32_t;
  /// Tells that a copy is done: an event of the device.
  using Copy = void*;

  /// An engine that reads `source` and has its blocks on `device`. InvalidArgument where others
  /// read another source.
  absl::StatusOr<Holder> Join(const void* source, int device);
  /// Devices whose engines are here, and whose copies to `device`, or from there, nobody has
  /// judged.
  std::vector<int> Unjudged(int device) const;
  /// Whether copies from one device to another pay; else nothing is found there. Not judged: they
  /// do.
  void Judge(int from, int to, bool pays);
  /// Its copies must be done; wait(copy) is called for those out of its blocks.
  void Leave(Holder holder, absl::FunctionRef<void(Copy)> wait);

  /// `record` has arrived in [at, at + bytes). Out of memory it is not found.
  void Publish(Holder holder, int64_t record, const std::byte* at, int64_t bytes);
  /// [at, at + bytes) is about to be written or to go: what lies there is not found any more, and
  /// wait(copy) is called for each copy out of it.
  void Withdraw(Holder holder, const std::byte* at, int64_t bytes,
                absl::FunctionRef<void(Copy)> wait);
  /// Where another engine holds `record`, calls begin(device, at), which begins a copy and
  /// returns it, or null if it cannot. That one is returned; null: nobody holds it, or out of
  /// memory. It is `holder`'s until Done.
  Copy Read(Holder holder, int64_t record,
            absl::FunctionRef<Copy(int device, const std::byte* at)> begin);
  void Done(Holder holder, Copy copy);

  PeerTierStats stats() const;

 private:
  using Address = uintptr_t;
  struct Block {
    Address begin = 0, end = 0;
    bool Overlaps(const Block& other) const { return begin < other.end && other.begin < end; }
  };
  struct Held {
    Address end = 0;
    int64_t record = 0;
  };
  struct Member {
    bool here = false;
    int device = 0;
    std::unordered_map<int64_t, Address> begins;  // of records
    std::map<Address, Held> blocks;               // by where they begin; none overlap
  };
  struct Reading {
    Holder from, by;
    Block block;
    Copy copy;
  };

  static Block BlockAt(const std::byte* at, int64_t bytes) {
    const auto begin = reinterpret_cast<Address>(at);
    return {begin, begin + static_cast<Address>(bytes)};
  }
  static void Forget(Member* member, const Block& block);
  void WithdrawLocked(Holder holder, const Block& block, absl::FunctionRef<void(Copy)> wait)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  const void* source_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::map<std::pair<int, int>, bool> pays_ ABSL_GUARDED_BY(mu_);  // by devices, from and to
  int here_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Member> members_ ABSL_GUARDED_BY(mu_);
  std::vector<Reading> readings_ ABSL_GUARDED_BY(mu_);
  PeerTierStats stats_ ABSL_GUARDED_BY(mu_);
};

}  // namespace moert

#endif  // MOERT_LIB_TRANSFER_PEER_TIER_H_
