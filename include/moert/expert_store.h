// ExpertStore: where every expert is, in which version, and how it moves.
//
// Owns the pools, the residency table and the transfers. One expert version is kAbsent, kLoading or
// kResident; it becomes visible only when its copy is complete, and its block is reused only when
// nobody has it pinned: a resident pointer is always a complete, usable record (VER, DynaExq Sec.
// 4).
//
// Not thread-safe: the engine calls it under its lock. Transfers run on other threads and meet the
// store in Pump and Wait only.
#ifndef MOERT_EXPERT_STORE_H_
#define MOERT_EXPERT_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/expert_source.h"
#include "moert/policy.h"
#include "moert/stats.h"

namespace moert {

class BlockPool;
class TransferQueue;
struct TransferDone;

enum class VersionState : uint8_t { kAbsent = 0, kLoading = 1, kResident = 2 };

enum class LoadReason : int32_t { kDemand = 0, kPrefetch = 1, kBackground = 2 };

class ExpertStore {
 public:
  /// All borrowed but the pool and the queue.
  ExpertStore(const ExpertSource* source, int version, std::unique_ptr<BlockPool> pool,
              std::unique_ptr<TransferQueue> transfers, ResidencyPolicy* residency,
              EngineStats* stats);
  ~ExpertStore();

  // Lookup.

  /// The complete record of an expert, or null. Valid while pinned, or until the next call that
  /// loads.
  const std::byte* Resident(ExpertKey key) const;
  bool InFlight(ExpertKey key) const;
  const RecordLayout& layout(ExpertKey key) const;
  LayerResidency Layer(int layer) const;

  /// A pinned expert is never evicted. Counted: each Pin needs an Unpin.
  void Pin(ExpertKey key);
  void Unpin(ExpertKey key);

  /// Marks a use for the policies: sets last_used to this layer call. True when it is the first use
  /// since a prefetch brought it.
  bool Touch(ExpertKey key);
  /// How long the transfer that brought a resident expert waited for the link, and took on it.
  int64_t queued_ns(ExpertKey key) const { return At(key).queued_ns; }
  int64_t moved_ns(ExpertKey key) const { return At(key).moved_ns; }
  /// Begins a layer call: advances the tick that Touch records.
  void BeginLayerCall() { ++tick_; }

  // Movement.

  /// Begins bringing an expert. False when there is no block for it now (all others pinned or in
  /// flight, or the policy refused a prefetch). An expert that is resident or in flight is left
  /// alone (a prefetch in flight is raised to demand) and counts as true.
  bool StartLoad(ExpertKey key, LoadReason reason, const PolicyContext& context);
  /// Forgets prefetches of a layer that have not started moving and that `counts` [E] (tokens of
  /// each expert in the true routing) does not want.
  void CancelPrefetches(int layer, absl::Span<const int32_t> counts);
  /// Publishes what has arrived.
  void Pump();
  /// Blocks until at least one transfer arrived, then publishes. False when none is in flight.
  bool Wait();
  /// The error of a load that failed since it was last asked, or OK.
  absl::Status TakeFailure(ExpertKey key);
  /// Ends a layer call: a layer over its capacity gives its surplus back.
  void EndLayerCall(const PolicyContext& context);

  /// Changes the number of blocks; evicts to fit, waiting for transfers in flight.
  /// FailedPrecondition if pinned experts hold more.
  absl::Status SetSlots(int64_t slots);
  /// Bookkeeping of one expert, for the budget's arithmetic.
  static const int64_t kBytesPerExpert;
  int64_t slots() const { return slots_; }
  int64_t resident_experts() const { return resident_count_; }

 private:
  struct Entry {
    VersionState state = VersionState::kAbsent;
    bool unused_prefetch = false;
    LoadReason reason = LoadReason::kDemand;
    int32_t block = -1;
    int32_t pins = 0;
    int64_t last_used = 0;
    int64_t inserted = 0;
    int64_t uses = 0;
    int64_t queued_ns = 0;  // of the transfer that brought it
    int64_t moved_ns = 0;
    absl::Status failure;
  };

  int64_t Index(ExpertKey key) const { return first_[key.layer] + key.expert; }
  Entry& At(ExpertKey key) { return entries_[Index(key)]; }
  const Entry& At(ExpertKey key) const { return entries_[Index(key)]; }
  void Publish();
  void SetCapacity(int64_t slots);
  void Evict(ExpertKey key);
  /// Gives the block back and forgets the entry.
  void Drop(ExpertKey key);
  /// Frees a block for `incoming`, or returns -1.
  int32_t MakeRoom(ExpertKey incoming, LoadReason reason, const PolicyContext& context);
  bool EvictOneOf(int layer, ExpertKey incoming, LoadReason reason, const PolicyContext& context);
  void SetVisible(ExpertKey key, bool resident, bool in_flight);

  static constexpr int kAnyLayer = -1;

  const ExpertSource* source_;
  const int version_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<TransferQueue> transfers_;
  ResidencyPolicy* residency_;
  EngineStats* stats_;

  std::vector<int64_t> first_;  // index of each layer's expert 0
  std::vector<Entry> entries_;
  std::vector<uint8_t> resident_;  // the residency table's visible bits
  std::vector<uint8_t> in_flight_;
  std::vector<int> capacity_;                // per layer
  std::vector<int> held_;                    // blocks per layer, loading ones included
  std::vector<VictimCandidate> candidates_;  // scratch
  std::vector<TransferDone> done_;           // scratch
  int64_t slots_ = 0;
  int64_t resident_count_ = 0;
  int64_t tick_ = 0;
};

}  // namespace moert

#endif  // MOERT_EXPERT_STORE_H_
