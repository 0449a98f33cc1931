// PeerTier: which engine of a process holds which records, and which copies between engines run.
//
// A record is found in a block from its arrival until the block is about to be overwritten. The
// writer is told of copies out of the block that began before, and makes its write wait for them.
// This cannot deadlock: no lock is held during a wait, and a copy between engines waits only for
// copies between engines that began earlier.
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

/// Thread-safe. Callbacks run under the tier's lock and must not call the tier.
class PeerTier {
 public:
  using Holder = int32_t;
  /// A handle to wait for a copy: an event of the device.
  using Copy = void*;

  /// Adds an engine that reads `source` and has its blocks on `device`. InvalidArgument if the
  /// other engines read another source.
  absl::StatusOr<Holder> Join(const void* source, int device);
  /// The devices of joined engines for which copies to or from `device` have not been judged.
  std::vector<int> Unjudged(int device) const;
  /// Sets whether copies from one device to another pay. If not, records are not found there.
  /// Before they are judged, copies are taken to pay.
  void Judge(int from, int to, bool pays);
  /// Removes an engine, whose own copies must be done. Calls wait(copy) for copies out of its
  /// blocks.
  void Leave(Holder holder, absl::FunctionRef<void(Copy)> wait);

  /// Makes `record` in [at, at + bytes) known. If memory runs out, it stays unknown.
  void Publish(Holder holder, int64_t record, const std::byte* at, int64_t bytes);
  /// Called before [at, at + bytes) is overwritten or freed: its records are no longer found, and
  /// wait(copy) is called for each copy out of it.
  void Withdraw(Holder holder, const std::byte* at, int64_t bytes,
                absl::FunctionRef<void(Copy)> wait);
  /// If another engine holds `record`, calls begin(device, at), which begins a copy and returns it,
  /// or null if it cannot. Returns that copy, which belongs to `holder` until Done; null also if no
  /// engine holds the record, or if memory runs out.
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
    std::unordered_map<int64_t, Address> begins;  // address by record
    std::map<Address, Held> blocks;               // by address; none overlap
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
