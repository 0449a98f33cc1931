// ResidentVersions: every expert is resident in one of several versions, and moves between them
// (the update pipeline of DynaExq Sec. 4.4: a queue of promotions and one of demotions, admission
// by a free block, publish-then-switch, reclaim after the last reader). Subclasses decide how many
// blocks or bytes high versions may take.
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

/// Rung 0 is the version of the fewest bits. Served versions count the other way: version 0 has the
/// most bits.
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
  // Implemented by subclasses.

  /// Sets the capacity: `high` experts in the version of the most bits, the others in that of the
  /// fewest.
  virtual void SetRoom(int64_t high) = 0;
  /// Chooses the rungs that Preload brings, by SetRung.
  virtual absl::Status ChooseInitial() = 0;
  /// Queues the policy's decision, as far as there is room.
  virtual void Decide(const PrecisionDecision& decision) = 0;
  /// Called after blocks have been reclaimed: gives each pool what the others leave.
  virtual void FitPools() {}
  /// The bytes that promotions starting now may add in total, and the bytes that one adds. Both in
  /// any unit.
  virtual int64_t GrowthRoom() const { return 0; }
  virtual int64_t GrowthOf(ExpertKey /*key*/) const { return 0; }

  // Used by subclasses.

  int64_t Index(ExpertKey key) const { return first_[key.layer] + key.expert; }
  int top() const { return store_->num_versions() - 1; }
  /// The rung that an expert has, or is moving to.
  int RungOf(ExpertKey key) const { return rung_[Index(key)]; }
  /// The rung that it has until a transition has arrived.
  int SettledOf(ExpertKey key) const { return settled_[Index(key)]; }
  int VersionOf(int rung) const { return top() - rung; }
  void SetRung(ExpertKey key, int rung);
  bool Legal(ExpertKey key) const;
  /// Whether a transition is queued or has started.
  bool Moving(ExpertKey key) const { return RungOf(key) != SettledOf(key); }
  /// The experts whose transition has started.
  absl::Span<const ExpertKey> moving() const { return moving_; }
  absl::StatusOr<PrecisionDecision> Ask(const PolicyContext& context, PrecisionMoment moment);
  /// The number of high experts of each layer if `high` are dealt evenly.
  std::vector<int32_t> Dealt(int64_t high) const;
  /// Queues a transition to `rung`, which starts when a block is free.
  void Queue(ExpertKey key, int rung);
  /// Drops queued transitions that have not started.
  void ForgetQueued();
  /// Demotes an expert at once; no step may be open. False: there is no block.
  absl::StatusOr<bool> DemoteNow(ExpertKey key, int rung);
  /// Waits for all started transitions, switches and reclaims; no step may be open.
  absl::Status Drain();

  const MoeModelSpec* const model_;
  PrecisionPolicy* const policy_;
  const TransitionOptions options_;
  VersionedStore* const store_;
  std::vector<int64_t> first_;
  std::vector<int64_t> selections_;  // since the last decision
  std::vector<uint8_t> rung_, settled_;
  std::vector<int32_t> capacity_;  // high experts of each layer, for the policy
  int64_t capacity_bytes_ = 0;     // likewise, if the versions share a pool
  std::vector<int64_t> bytes_;     // likewise, [expert][version]

 private:
  absl::Status WaitForLayer(int layer);
  void SwitchArrived();
  void StartQueued(int64_t now_ns);
  bool StartOne(std::deque<ExpertKey>* queue, int64_t now_ns, int64_t* counter);

  TransitionPacer pacer_;
  std::deque<ExpertKey> promotions_, demotions_;
  std::vector<ExpertKey> moving_;  // experts whose next version is loading
  int64_t decided_ns_ = 0;
  bool any_step_ = false;
};

}  // namespace moert

#endif  // MOERT_LIB_STORE_RESIDENT_VERSIONS_H_
