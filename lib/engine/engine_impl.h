// The engine behind moert/engine.h. engine_step.cc runs steps through its layers, engine_parts.cc
// makes its parts, and engine.cc has the host's other calls.
#ifndef MOERT_LIB_ENGINE_ENGINE_IMPL_H_
#define MOERT_LIB_ENGINE_ENGINE_IMPL_H_

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fork.h"
#include "base/mutex.h"
#include "engine/blueprint.h"
#include "engine/engine_parts.h"
#include "moert/engine.h"
#include "store/acquire.h"

namespace moert {

/// Experts that a call of Engine::Fetch pinned for a step. The destructor unpins them.
struct Fetched {
  int layer = 0;
  Pins pins;
  std::vector<int32_t> slot_of_expert;  // [E], -1: not of this call
};

class EngineImpl final : public Engine {
 public:
  /// Ignores the options' shard: `source` is the shard's source, and `part` says how the shard lies
  /// in the model.
  static absl::StatusOr<std::unique_ptr<EngineImpl>> Create(
      std::shared_ptr<const ExpertSource> source, const EngineOptions& options,
      const PartOfModel& part = {});

  absl::StatusOr<StepId> BeginStep(const StepInfo& info) override;
  absl::Status Forward(StepId step, int layer, const MatrixView& hidden,
                       const MutableMatrixView& out) override;
  absl::Status ForwardRouted(StepId step, int layer, const MatrixView& hidden,
                             const RoutedInput& routing, const MutableMatrixView& out) override;
  absl::Status EndStep(StepId step) override;
  absl::Status StepStatus(StepId step) override;
  absl::Status CancelStep(StepId step) override;
  absl::StatusOr<LeaseId> AcquireExperts(StepId step, int layer, absl::Span<const int32_t> experts,
                                         std::vector<ExpertView>* views) override;
  absl::Status UseLease(
      LeaseId lease,
      absl::FunctionRef<absl::Status(absl::Span<const ExpertView>)> use) const override {
    return leases_->Use(lease, use);
  }
  absl::Status ReleaseExperts(LeaseId lease) override;
  absl::Status Fetch(StepId step, int layer, const FetchInput& input, SlotView* view) override;
  absl::Status TakeCpuRows(StepId step, int layer, const MutableMatrixView& rows) override;
  absl::Status ReleaseFetched(StepId step, int layer) override;
  absl::Status CopyLayer(StepId step, int layer, absl::Span<const int32_t> experts, std::byte* to,
                         SlotView* view) override;
  absl::Status MultiplyOnCpu(StepId step, int layer, const OpaqueProduct& product) override;
  absl::Status PrefetchHint(int layer, absl::Span<const int32_t> experts) override;
  absl::StatusOr<std::vector<Residency>> ResidencyOf(int layer) override;
  absl::Status SetBudget(const Budget& budget) override;

  EngineStats stats() const override {
    const MutexLock lock(&published_mu_);
    return published_;
  }
  MemoryPlan memory() const override {
    const MutexLock lock(&published_mu_);
    return plan_;
  }
  int64_t now_ns() const override { return blueprint_->clock->now_ns(); }
  const MoeModelSpec& model() const override { return source_->model(); }
  const std::string& strategy() const override { return blueprint_->strategy.spec; }
  BackendKind backend() const override { return blueprint_->backend->kind(); }
  /// See Backend::hidden_on_host.
  bool hidden_on_host() const { return blueprint_->backend->hidden_on_host(); }
  Promise promise() const override { return blueprint_->strategy.promise(); }
  const GraphNeeds& graph_needs() const override { return graph_needs_; }

 private:
  struct StepState {
    Phase phase = Phase::kPrefill;
    int64_t rows = 0;
    int64_t number = 0;
    int64_t epoch = 0;
    int64_t begin_ns = 0;
    std::vector<int64_t> request_ids;
    std::vector<int32_t> token_ids;
    void* stream = nullptr;
    PredictNext predict_next;
    std::shared_ptr<std::atomic<bool>> cancelled;
    absl::Status status;
    std::list<Fetched> fetched;
  };

  EngineImpl(std::shared_ptr<const ExpertSource> source, const EngineOptions& options,
             std::unique_ptr<Blueprint> blueprint, std::unique_ptr<EngineParts> parts);

  /// FailedPrecondition in a fork of the process that made the engine: its threads do not exist
  /// there, and its locks may be held for ever. Called before any lock is taken.
  absl::Status CheckProcess() const;
  /// InvalidArgument: the step never existed; FailedPrecondition: it has ended.
  absl::StatusOr<StepState*> FindStep(StepId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetStep(StepId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Reports the end of a step to policies and traces.
  void AfterStep(const StepState& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Run(StepId step_id, int layer, const MatrixView& hidden, const RoutedInput* routed,
                   const MutableMatrixView& out);
  void LogCall(int layer, const absl::Status& status, int64_t fallbacks);
  /// Whether it has to be logged, once, that predictions lack the host's scores.
  bool LacksScores() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LogLackingScores() const;
  absl::Status RunLocked(StepId step_id, int layer, const MatrixView& hidden,
                         const RoutedInput* routed, const MutableMatrixView& out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// The checks that every call about slots needs.
  absl::Status CheckSlotView(int layer, const SlotView* view) const;
  /// Whether experts may be present in several versions. If so, no slot holds an expert for good.
  bool serves_versions() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return parts_->versions != nullptr || parts_->store->num_versions() > 1;
  }
  /// Experts of fetches that the device served are not pinned. So earlier fetches of the layer must
  /// have been released, and fetches of all layers before a call that the device does not serve.
  absl::Status CheckReleased(int layer, bool served) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Takes lent blocks back from the device, if the fetches that it served have been released.
  absl::Status TakeBack() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CopyLayerLocked(StepId step_id, int layer, absl::Span<const int32_t> experts,
                               std::byte* to, SlotView* view) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Makes failures of the CPU's products since the last call errors of the step.
  absl::Status TakeCpuFailure(StepState* step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status FetchLocked(StepId step_id, int layer, const FetchInput& input, SlotView* view)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Whether calls on the step's stream are recorded into a graph.
  absl::StatusOr<bool> Capturing(const StepState& step) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Refuses a call whose routing is missing, or is in memory where it cannot be read.
  absl::Status CheckRouting(int layer, int64_t rows, const RoutedInput* routed) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// The same for a Fetch.
  absl::Status CheckFetched(int layer, const StepState& step, const FetchInput& input,
                            bool capturing) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Sizes of a routing on the device, and the name of the array that is written.
  struct OnDevice {
    size_t ids, weights, written;
    const char* written_name;
    bool scores;
  };
  absl::Status CheckOnDevice(int layer, int64_t rows, const OnDevice& given) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status SetBudgetLocked(const Budget& budget) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Fits the pools to a plan at once.
  absl::Status TakePlan(const MemoryPlan& plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Makes the plan the current one.
  void ConfirmPlan(const MemoryPlan& plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// At a boundary of steps: takes the next steps towards the plan coming_.
  void AdvancePlan() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Starts the loads that hints asked for.
  void ApplyHints() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Log(LogLevel level, const std::string& line) const {
    if (options_.log != nullptr) options_.log(level, line);
  }
  PolicyContext ContextOf(const StepState& step, int layer) const {
    return {&source_->model(), step.number, step.phase, now_ns(), layer, step.request_ids};
  }
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int forks_ = ForkCount();
  const std::shared_ptr<const ExpertSource> source_;
  const EngineOptions options_;
  const std::unique_ptr<const Blueprint> blueprint_;  // its policies are asked under mu_
  Turns turns_;
  Mutex mu_;  // one call of the host at a time, in turn
  const std::unique_ptr<EngineParts> parts_ ABSL_PT_GUARDED_BY(mu_);
  const Leases* const leases_;  // of parts_; Leases::Use needs no lock
  const GraphNeeds graph_needs_;
  const EngineStats opened_;  // counted while the engine was opened
  std::map<StepId, StepState> steps_ ABSL_GUARDED_BY(mu_);
  std::optional<MemoryPlan> coming_ ABSL_GUARDED_BY(mu_);  // versions move towards it
  StepId next_step_ ABSL_GUARDED_BY(mu_) = 1;
  bool said_lacking_ ABSL_GUARDED_BY(mu_) = false;  // see LacksScores

  // Unlike mu_ never held for long. If mu_ is taken as well, it is taken first.
  mutable Mutex cancel_mu_, hints_mu_, published_mu_;
  std::map<StepId, std::shared_ptr<std::atomic<bool>>> cancel_flags_ ABSL_GUARDED_BY(cancel_mu_);
  std::vector<ExpertKey> hints_ ABSL_GUARDED_BY(hints_mu_);
  EngineStats published_ ABSL_GUARDED_BY(published_mu_);
  MemoryPlan plan_ ABSL_GUARDED_BY(published_mu_);  // changes under mu_
};

}  // namespace moert

#endif  // MOERT_LIB_ENGINE_ENGINE_IMPL_H_
