// VersionedStore: where every expert is, in which version, and how it moves.
//
// Owns the pools, the residency table and the transfers. A version of an expert is kAbsent,
// kLoading or kResident. The *handle* of an expert names its active version, and one invariant
// holds: a handle resolves to a complete, usable record (versioned expert residency, DynaExq
// Sec. 4.1). So
//   - a version becomes visible only when its copy is complete;
//   - absent -> present is visible at once, within the step too;
//   - a switch between two versions is visible to steps that begin after it, never within a step;
//   - a block is reused only when it can no longer be read: its expert is not pinned, and no open
//     step still resolves to it.
// In the paper's words an expert is ResidentHi or ResidentLo (one version, or the low one always
// kept), Promoting or Demoting (another version is kLoading, the handle unmoved) or Evicting (the
// handle has moved, the old version waits for its last reader).
//
// Not thread-safe: the engine calls it under its lock. Transfers run on other threads and meet the
// store in Pump and Wait only.
#ifndef MOERT_LIB_STORE_VERSIONED_STORE_H_
#define MOERT_LIB_STORE_VERSIONED_STORE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/expert_store.h"
#include "moert/policy.h"
#include "moert/source/expert_source.h"
#include "moert/tools/trace.h"
#include "store/block_pool.h"
#include "store/lent_blocks.h"
#include "store/residency/cache_policy.h"
#include "transfer/transfer_queue.h"

namespace moert {

class LinkEstimate;

enum class VersionState : uint8_t { kAbsent = 0, kLoading = 1, kResident = 2 };

/// Versions of one expert that an engine can serve.
inline constexpr int kMaxVersions = 4;

/// A served version: its number in the source, and the pool that its blocks come from.
struct ServedVersion {
  int source_version = 0;
  int pool = 0;
  int64_t first_index = 0;  // index of its first expert in the pool
};

/// The compute path's view of an expert.
struct ExpertHandle {
  const std::byte* record = nullptr;  // null: absent
  const RecordLayout* layout = nullptr;
  int version = -1;  // index into the served versions
};

/// The slots of a layer: the record of slot s lies at base + s * stride.
struct SlotRegion {
  const std::byte* base = nullptr;
  int64_t stride = 0;
  int64_t slots = 0;

  /// The slot of a record; -1 for no record.
  int32_t SlotOf(const std::byte* record) const {
    return record == nullptr ? -1 : static_cast<int32_t>((record - base) / stride);
  }
};

/// A layer call's hints about a load that it asks for.
struct LoadHint {
  int32_t tokens = 0;  // tokens that need the expert
  /// Experts of this call are in flight or about to be multiplied and will give their blocks back:
  /// experts of other layers need not be evicted for this load.
  bool can_wait = false;
  /// Enough of them are in flight that experts which this call used for more tokens need not be
  /// evicted either. So a call that needs more experts than its layer has slots leaves the popular
  /// ones in the cache.
  bool spare_popular = false;
  /// For a prefetch: its probability and hidden share, for the residency policy (VictimSnapshot).
  float probability = -1;
  float hidden = 1;
};

/// Information from a prefetcher to the store that it drives.
struct PrefetchDriver {
  LinkEstimate* link = nullptr;               // observes the transfers that arrive; may be null
  absl::Span<const PrefetchOutlook> outlook;  // [L], for the capacities; empty: no prefetch
  /// A CPU beside the fast tier computes missing experts, which are loaded later if that is worth
  /// it: only demand loads are indispensable.
  bool cpu_offload = false;
};

/// How a lookup was answered.
enum class LookupResult : int8_t {
  kMiss,
  kLow,  // answered by a lower version than intended
  kHit,
};

class VersionedStore {
 public:
  /// Versions with the most bits first. A residency policy's capacities refer to pool 0.
  VersionedStore(const ExpertSource* source, std::vector<ServedVersion> versions,
                 std::vector<std::unique_ptr<BlockPool>> pools,
                 std::unique_ptr<TransferQueue> transfers, CachePolicy* residency);
  ~VersionedStore();

  /// From now on arriving transfers are reported to `trace`, which is borrowed; null: to none.
  void StartTrace(TraceSink* trace) { trace_ = trace; }
  /// Sets the prefetcher that drives the store. With an outlook the capacities are computed again,
  /// as the constructor had none. Borrows what `driver` points to, until the next call.
  void Attach(const PrefetchDriver& driver);
  /// For a cache: whether the layer has a free slot; if layers share slots, whether any is free.
  bool HasFreeSlot(int layer) const {
    if (Shares()) return pools_[0]->taken() < pools_[0]->limit();
    return held_[layer] < capacity_[layer];
  }

  // Steps.

  /// Applies the switches that wait for a boundary, and opens a step. The returned epoch identifies
  /// the handles that the step sees.
  int64_t OpenStep();
  void CloseStep(int64_t epoch);

  // Lookup.

  /// The handle as a step of `epoch` sees it. Valid while pinned.
  ExpertHandle Resolve(ExpertKey key, int64_t epoch) const;
  /// The handle as the next step will see it.
  ExpertHandle Latest(ExpertKey key) const { return Resolve(key, epoch_); }
  /// Whether the expert is absent and a version of it is on its way.
  bool Arriving(ExpertKey key) const;
  VersionState State(ExpertKey key, int version) const { return At(key).versions[version].state; }
  /// Whether a switch waits for a boundary, or for readers of the old version.
  bool Switching(ExpertKey key) const { return At(key).next >= 0 || At(key).previous >= 0; }
  /// The active version after the next boundary; -1: none.
  int Coming(ExpertKey key) const { return At(key).next >= 0 ? At(key).next : At(key).active; }
  const RecordLayout& layout(ExpertKey key, int version) const;
  /// The size of the block that this version of the expert takes.
  int64_t BlockBytes(ExpertKey key, int version) const {
    return pools_[versions_[version].pool]->BytesFor(PoolIndex(key, version));
  }
  int num_versions() const { return static_cast<int>(versions_.size()); }
  LayerResidency Layer(int layer) const;
  /// The states of a layer's experts, [E], for a host.
  std::vector<Residency> States(int layer) const;
  StoreStats stats() const { return stats_; }

  /// The version the strategy wants an expert to be answered with; a lower one is a low answer.
  int intended(ExpertKey key) const { return At(key).intended; }
  void set_intended(ExpertKey key, int version) { At(key).intended = static_cast<int8_t>(version); }

  /// A pinned expert is never evicted. Counted: each Pin needs an Unpin.
  void Pin(ExpertKey key) { ++At(key).pins; }
  void Unpin(ExpertKey key) { --At(key).pins; }

  /// Begins a layer call: advances the tick that Touch records.
  void BeginLayerCall() { ++tick_; }
  /// Counts a lookup by `tokens` tokens of an expert as a step of `epoch` sees it. Touches the
  /// expert unless it is a miss.
  LookupResult Lookup(ExpertKey key, int64_t epoch, int32_t tokens);
  /// Counts `calls` past lookups, by `slots` tokens in total, that did not ask the store: the
  /// handle was present and has been read. Returns kLow or kHit.
  LookupResult CountAnswered(ExpertKey key, int64_t slots, int64_t calls);
  /// Marks a use by `tokens` tokens for the policies. True when it is the first use since a
  /// prefetch brought the expert.
  bool Touch(ExpertKey key, int32_t tokens);
  /// How long the transfer of a resident expert waited for the link, and how long it took.
  int64_t queued_ns(ExpertKey key) const { return At(key).queued_ns; }
  int64_t moved_ns(ExpertKey key) const { return At(key).moved_ns; }

  /// From now on records which experts' handles change.
  void TrackChanges() {
    changed_.reserve(entries_.size());
    tracking_ = true;
  }
  /// Appends the experts whose latest handle may have changed since the last call, each once.
  void TakeChanges(std::vector<ExpertKey>* changed);

  // Movement of a cache: experts come and go.

  /// Begins loading an absent expert. False when there is no block for it now. An expert that is
  /// present or arriving is left alone (a prefetch in flight is raised), and the result is true.
  ///
  /// A layer under its capacity takes a free block, and so does any other while transient blocks
  /// (those beyond the sum of the capacities) are left; else the layer replaces one of its own, as
  /// the residency policy says. When that fails (a layer with no slots, or all of them pinned) it
  /// borrows: a free block, then one of a layer over its capacity, then, for a demand load that has
  /// no block of its own call to wait for, one of any layer. A layer gives blocks beyond its
  /// capacity back when its call ends. If the policy shares the slots (CachePolicy::Shares), a free
  /// block is taken, else that of the expert worth least.
  bool StartLoad(ExpertKey key, int version, LoadReason reason, const PolicyContext& context,
                 const LoadHint& hint = {});
  /// Cancels prefetches of a layer that have not started and whose expert has no tokens in the true
  /// routing (`counts` [E]). Returns how many.
  int64_t CancelPrefetches(int layer, absl::Span<const int32_t> counts);
  /// Publishes the transfers that have arrived.
  void Pump();
  /// Transfers that have not arrived.
  int64_t in_flight() const { return loading_; }
  /// Blocks until at least one transfer arrived, then publishes. False when none is in flight.
  bool Wait();
  /// The error of a load that the current layer call began and that failed since the last call, or
  /// OK. Prefetches and loads that an earlier call left in flight fail silently: a call that waits
  /// for such an expert begins its own load.
  absl::Status TakeFailure(ExpertKey key);
  /// Replaces the active version of an expert by `version` of the same pool, in the same block: the
  /// expert is absent until that has arrived. False, without effect, if it is read or switching.
  bool Reload(ExpertKey key, int version, LoadReason reason);
  /// Ends a layer call: a layer over its capacity gives its surplus back.
  void EndLayerCall(const PolicyContext& context);

  // Lending: for a while a device decides, under the same rule, which experts are in the blocks of
  // a cache, all of them in version 0.

  /// Hands over every layer's blocks: at least LeastLent of them, with free ones up to its
  /// capacity; the remaining free blocks are dealt evenly. Waits for transfers in flight. False,
  /// without effect, while an expert is pinned.
  bool Lend(std::vector<LentLayer>* layers);
  /// The least number of blocks that a layer is lent, unless memory runs out: the experts of one
  /// token if the limit holds those of every layer, else 0. Layers with more blocks give some away,
  /// whatever the capacities.
  int LeastLent(int layer) const;
  /// Takes the blocks back, with the experts that are in them now.
  void TakeBack(absl::Span<const LentLayer> layers);
  /// Adds to the statistics.
  void CountServed(const ServedCount& count);
  // A cache over low versions that stand by (Serving::kCacheOverLow): version 1, in pool 1.

  /// Brings the low version of every expert, at open.
  absl::Status LoadStandby();
  /// The low version of an expert; has no record if none stands by.
  ExpertHandle Standby(ExpertKey key) const;
  /// Counts that a missed lookup is answered by a low version.
  void CountLowAnswer(ExpertKey key);
  /// For a cache of several versions: drops an expert that is present in a lower one and not in
  /// use.
  void DropLow(ExpertKey key);

  // Movement between versions: an expert stays present throughout.

  /// Begins loading a second version beside the active one, into a free block only: nothing is
  /// evicted for it. False if no block is free.
  bool StartVersion(ExpertKey key, int version, LoadReason reason);
  /// From the next boundary on the handle is `version`; with `drop_old`, the old version is
  /// reclaimed after its last reader. The last call before the boundary counts. False, without
  /// effect, if `version` is not resident.
  bool Switch(ExpertKey key, int version, bool drop_old);
  /// The policy's choice among the experts of `layer` (all layers if negative) whose latest version
  /// is in pool 0 and that are not switching; expert -1 if there is none or the policy refuses.
  ExpertKey ChooseVictim(int layer, ExpertKey incoming, LoadReason reason,
                         const PolicyContext& context, const LoadHint& hint = {});

  // Size.

  /// Changes the number of blocks in pool 0 of a cache, for pools with classes the bytes. Evicts to
  /// fit, waiting for transfers in flight. FailedPrecondition if pinned experts hold more.
  absl::Status SetSlots(int64_t slots, int64_t bytes);
  /// Where the experts of a layer lie in pool 0. FailedPrecondition if they have no constant
  /// stride.
  absl::StatusOr<SlotRegion> Slots(int layer) const;
  /// How many of the experts that `counts` [E] marks can be pinned in addition to those pinned now.
  int64_t RoomFor(int layer, absl::Span<const int32_t> counts) const;
  BlockPool& pool(int index) { return *pools_[index]; }
  /// The pool of a version.
  BlockPool& PoolOf(int version) { return *pools_[versions_[version].pool]; }
  const BlockPool& pool(int index) const { return *pools_[index]; }
  int capacity(int layer) const { return capacity_[layer]; }
  int held(int layer) const { return held_[layer]; }
  /// Recomputes the capacities for `slots` blocks of pool 0.
  void SetCapacity(int64_t slots);
  const std::vector<int>& capacities() const { return capacity_; }
  /// Restores former capacities when a resize fails. Allocates nothing and asks no policy.
  void PutBack(std::vector<int> capacities) noexcept { capacity_ = std::move(capacities); }
  /// At the beginning of a step of a cache: takes new capacities if the residency policy has any.
  void RefreshCapacity(const PolicyContext& context);

  /// Bookkeeping of one expert, for the budget's arithmetic.
  static const int64_t kBytesPerExpert;

 private:
  struct Version {
    VersionState state = VersionState::kAbsent;
    LoadReason reason = LoadReason::kDemand;
    int32_t block = -1;
    int64_t begun = 0;  // tick of the call that began its load, even if the load failed
  };
  struct Entry {
    std::array<Version, kMaxVersions> versions;
    int8_t active = -1;    // for steps from epoch `since` on
    int8_t previous = -1;  // for older steps; -1: none of them differs
    int8_t next = -1;      // from the next boundary on
    bool drop_previous = false;
    bool drop_next = false;
    int8_t intended = 0;
    bool unused_prefetch = false;
    bool changed = false;    // in changed_
    bool reloading = false;  // in Reload: no insertion for the residency policy
    int32_t pins = 0;
    int64_t since = 0;
    int64_t last_used = 0;
    int64_t inserted = 0;
    int64_t uses = 0;
    int32_t tokens = 0;
    int64_t queued_ns = 0;
    int64_t moved_ns = 0;
    absl::Status failure;
  };

  /// Counts `calls` lookups that `version` answered.
  LookupResult Count(ExpertKey key, int version, int32_t tokens, int64_t calls);
  int64_t Index(ExpertKey key) const { return first_[key.layer] + key.expert; }
  Entry& At(ExpertKey key) { return entries_[Index(key)]; }
  const Entry& At(ExpertKey key) const { return entries_[Index(key)]; }
  /// The index of an expert among those of a version's pool.
  int64_t PoolIndex(ExpertKey key, int version) const {
    return versions_[version].first_index + Index(key);
  }
  void TakeCapacity(std::vector<int> capacity, int64_t slots);
  void Submit(ExpertKey key, int version, int32_t block, LoadReason reason);
  /// As Submit; gives the block back if Submit throws, which has no other effect.
  void SubmitOrGive(ExpertKey key, int version, int32_t block, LoadReason reason);
  void Publish();
  void PublishOne(const TransferDone& done);
  void UpdateVisible(ExpertKey key);
  /// Gives a version's block back.
  void Drop(ExpertKey key, int version);
  void Evict(ExpertKey key);
  // Parts of Lend.
  void DropAllLow();
  void FreeLeast();
  bool LendFree(int layer, std::vector<LentSlot>* slots);
  void DealFree(std::vector<LentLayer>* layers);
  void LendUse(std::vector<LentLayer>* layers) const;
  /// An expert has entered or left by the device's decision.
  void TakeBackSlot(int layer, const LentSlot& slot);
  void ForgetLent(ExpertKey key);
  bool Shares() const { return residency_->Shares(); }
  bool TransientFree() const;
  /// Evicts experts of a layer until there is a block for `incoming`; -1 when there is none.
  int32_t TakeFrom(int layer, ExpertKey incoming, LoadReason reason, const PolicyContext& context,
                   const LoadHint& hint = {});
  int32_t MakeRoom(ExpertKey incoming, int pool, LoadReason reason, const PolicyContext& context,
                   const LoadHint& hint);
  /// As MakeRoom, if layers share the slots.
  int32_t MakeSharedRoom(ExpertKey incoming, LoadReason reason, const PolicyContext& context,
                         const LoadHint& hint);
  bool EvictOneOf(int layer, ExpertKey incoming, LoadReason reason, const PolicyContext& context,
                  const LoadHint& hint = {});
  /// Frees the versions that the oldest open step can no longer see.
  void Reclaim();

  static constexpr int kAnyLayer = -1;

  const ExpertSource* source_;
  const std::vector<ServedVersion> versions_;
  std::vector<std::unique_ptr<BlockPool>> pools_;
  std::unique_ptr<TransferQueue> transfers_;
  CachePolicy* residency_;
  StoreStats stats_;
  TraceSink* trace_ = nullptr;
  PrefetchDriver driver_;

  std::vector<int64_t> first_;  // index of each layer's expert 0
  int64_t token_blocks_ = 0;    // blocks that one token needs in all layers
  std::vector<Entry> entries_;
  std::vector<uint8_t> resident_;   // version 0 is active
  std::vector<uint8_t> usable_;     // some version is active
  std::vector<uint8_t> in_flight_;  // a version is on its way
  std::vector<int32_t> standby_;    // blocks of pool 1 by index; empty: none stand by
  std::vector<int> capacity_;       // per layer, of pool 0
  std::vector<int> held_;           // blocks of pool 0 per layer, loading ones included
  bool tracking_ = false;
  std::vector<ExpertKey> changed_;           // since TakeChanges
  std::vector<VictimCandidate> candidates_;  // scratch
  std::vector<TransferDone> done_;           // scratch

  int64_t epoch_ = 0;
  std::multiset<int64_t> open_epochs_;
  std::vector<ExpertKey> switching_;   // wait for the boundary
  std::vector<ExpertKey> reclaiming_;  // have a previous version
  int64_t tick_ = 0;
  int64_t loading_ = 0;
};

}  // namespace moert

#endif  // MOERT_LIB_STORE_VERSIONED_STORE_H_
