// ResidentVersions: every expert is resident in one of several versions, and moves between them
// (the update pipeline of DynaExq Sec. 4.4: a queue of promotions and one of demotions, admission
// by a free block, publish-then-switch, reclaim after the last reader). Subclasses say how many
// bytes or blocks may be high.
#ifndef MOERT_LIB_STORE_RESIDENT_VERSIONS_H_
#define MOERT_LIB_STORE_RESIDENT_VERSIONS_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/policy.h"
#include "store/version_manager.h"

namespace moert {

/// An expert's rung counts versions from the one of the fewest bits, 0; served versions count from
/// the one of the most.
class ResidentVersions : public VersionManager {
 public:
  ResidentVersions(const MoeModelSpec* model, PrecisionPolicy* policy,
                   const TransitionOptions& options, VersionedStore* store);

  absl::Status Preload(int64_t high) final;
  void BeforeStep(const PolicyContext& context) final;
  void AfterStepOpened(const PolicyContext& context) final {
    FitPools();
    StartQueued(context.now_ns);
  }
  void AfterStep(const PolicyContext& context) final;
  void OnRouting(const PolicyContext& context, const RoutingView& routing) final;

 protected:
  // Subclasses answer these.

  /// Room for `high` experts in the version of the most bits, and the others in that of the fewest.
  virtual void SetRoom(int64_t high) = 0;
  /// The rungs that Preload brings, by SetRung.
  virtual absl::Status ChooseInitial() = 0;
  /// Queues what the policy decided, as far as there is room.
  virtual void Decide(const PrecisionDecision& decision) = 0;
  /// After blocks have been reclaimed: each pool gets what the others leave it.
  virtual void FitPools() {}
  /// The bytes that promotions which start now may add together, and those of one, in any unit.
  virtual int64_t GrowthRoom() const { return 0; }
  virtual int64_t GrowthOf(ExpertKey /*key*/) const { return 0; }

  // Subclasses use these.

  int64_t Index(ExpertKey key) const { return first_[key.layer] + key.expert; }
  int top() const { return store_->num_versions() - 1; }
  /// Where an expert is, or is going.
  int RungOf(ExpertKey key) const { return rung_[Index(key)]; }
  /// Where it is until a transition has arrived.
  int SettledOf(ExpertKey key) const { return settled_[Index(key)]; }
  int VersionOf(int rung) const { return top() - rung; }
  void SetRung(ExpertKey key, int rung);
  bool Legal(ExpertKey key) const;
  /// Queued, or on its way.
  bool Moving(ExpertKey key) const { return RungOf(key) != SettledOf(key); }
  /// Those whose transition has started.
  absl::Span<const ExpertKey> moving() const { return moving_; }
  absl::StatusOr<PrecisionDecision> Ask(const PolicyContext& context, PrecisionMoment moment);
  /// As many high experts a layer as are dealt evenly.
  std::vector<int32_t> Dealt(int64_t high) const;
  /// The expert is going to `rung` from now on; the transition starts when a block is free.
  void Queue(ExpertKey key, int rung);
  /// A switch that was never started changes nothing.
  void ForgetQueued();
  /// Brings an expert down at once; no step is open. False: no block.
  absl::StatusOr<bool> DemoteNow(ExpertKey key, int rung);
  /// Lands, switches and reclaims everything that moves; no step is open.
  absl::Status Drain();

  const MoeModelSpec* const model_;
  PrecisionPolicy* const policy_;
  const TransitionOptions options_;
  VersionedStore* const store_;
  std::vector<int64_t> first_;
  std::vector<int64_t> selections_;  // since the last decision
  std::vector<uint8_t> rung_, settled_;
  std::vector<int32_t> capacity_;  // high experts of each layer, to tell the policy
  int64_t capacity_bytes_ = 0;     // likewise, where the versions share a pool
  std::vector<int64_t> bytes_;     // likewise, [expert][version]

 private:
  absl::Status WaitForLayer(int layer);
  void SwitchArrived();
  void StartQueued(int64_t now_ns);
  bool StartOne(std::deque<ExpertKey>* queue, int64_t now_ns, int64_t* counter);

  TransitionPacer pacer_;
  std::deque<ExpertKey> promotions_, demotions_;
  std::vector<ExpertKey> moving_;  // the version of its rung is loading
  int64_t decided_ns_ = 0;
  bool any_step_ = false;
};

}  // namespace moert

#endif  // MOERT_LIB_STORE_RESIDENT_VERSIONS_H_
