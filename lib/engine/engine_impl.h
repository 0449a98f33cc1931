// The engine behind moert/engine.h. One object, three stages of its life: engine_open.cc builds it
// from a blueprint, engine_step.cc runs steps through its layers, engine.cc is what else a host
// asks of it.
#ifndef MOERT_LIB_ENGINE_ENGINE_IMPL_H_
#define MOERT_LIB_ENGINE_ENGINE_IMPL_H_

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/aligned_array.h"
#include "engine/blueprint.h"
#include "engine/layer.h"
#include "engine/leases.h"
#include "moert/engine.h"
#include "store/block_pool.h"
#include "store/budget_tracker.h"
#include "strategies/builtin.h"
#include "transfer/link_estimate.h"

namespace moert {

class EngineImpl final : public Engine {
 public:
  EngineImpl(std::shared_ptr<const ExpertSource> source, const EngineOptions& options, Blueprint b)
      : source_(std::move(source)),
        options_(options),
        strategy_(std::move(b.strategy)),
        default_residency_(MakeLru()),
        plan_(b.plan),
        budget_(b.plan.budget_bytes),
        pool_(std::move(b.pool)),
        gemm_(std::move(b.gemm)),
        backend_(std::move(b.backend)),
        versions_(std::move(b.versions)) {}

  absl::Status Init();

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
  absl::Status PrefetchHint(int layer, absl::Span<const int32_t> experts) override;
  absl::StatusOr<std::vector<Residency>> ResidencyOf(int layer) override;
  absl::Status SetBudget(const Budget& budget) override;

  EngineStats stats() const override {
    std::lock_guard<std::mutex> lock(published_mu_);
    return published_;
  }
  MemoryPlan memory() const override {
    std::lock_guard<std::mutex> lock(published_mu_);
    return plan_;
  }
  int64_t now_ns() const override { return clock_->now_ns(); }
  const MoeModelSpec& model() const override { return source_->model(); }
  const std::string& strategy() const override { return strategy_.spec; }
  BackendKind backend() const override {
    return backend_ == nullptr ? BackendKind::kCpu : BackendKind::kCuda;
  }
  bool exact() const override { return strategy_.exact(); }
  bool graph_safe() const override;

 private:
  struct Step {
    Phase phase = Phase::kPrefill;
    int64_t rows = 0;
    int64_t number = 0;
    int64_t epoch = 0;
    int64_t begin_ns = 0;
    std::vector<int64_t> request_ids;
    void* stream = nullptr;
    PredictNext predict_next;
    std::shared_ptr<std::atomic<bool>> cancelled;
    absl::Status status;
  };

  /// InvalidArgument: there never was such a step; FailedPrecondition: it has ended. Under mu_.
  absl::StatusOr<Step*> FindStep(StepId id);
  absl::Status ReadConstants();
  /// What computes experts beside the fast tier, if anything does.
  CpuOffload MakeCpuOffload();
  absl::StatusOr<std::unique_ptr<BlockPool>> MakePool(const BlockSizes& sizes, int64_t limit);
  absl::Status Run(StepId step_id, int layer, const MatrixView& hidden, const RoutedInput* routed,
                   const MutableMatrixView& out);
  absl::Status RunLocked(StepId step_id, int layer, const MatrixView& hidden,
                         const RoutedInput* routed, const MutableMatrixView& out);
  absl::Status SetBudgetLocked(const Budget& budget);
  absl::Status CheckLayer(int layer) const;
  /// Starts what hints asked for. Under mu_.
  void ApplyHints();
  void Log(LogLevel level, const std::string& line) const {
    if (options_.log != nullptr) options_.log(level, line);
  }
  absl::Status Preload();
  /// With a manager, versions begin to arrive at the beginning of steps, with a CPU beside the
  /// device, experts behind a call: neither is to wait until memory is mapped under them.
  void HoldPools();
  PolicyContext ContextOf(const Step& step, int layer) const {
    return {&source_->model(), step.number, step.phase, clock_->now_ns(), layer, step.request_ids};
  }
  /// Blocks of address space a pool reserves: every expert, and what is spare.
  int64_t MaxBlocks() const { return plan_.total_experts + plan_.spare; }
  absl::Status CheckViews(const Step& step, int layer, const MatrixView& hidden,
                          const MutableMatrixView& out) const;
  /// The components' counters in one.
  EngineStats CollectStats() const;
  void Publish();

  const std::shared_ptr<const ExpertSource> source_;
  const EngineOptions options_;
  Strategy strategy_;
  const std::unique_ptr<ResidencyPolicy> default_residency_;
  MemoryPlan plan_;
  BudgetTracker budget_;
  std::unique_ptr<Clock> clock_;
  HardwareProfile profile_;
  std::shared_ptr<ThreadPool> pool_;
  std::unique_ptr<MixedGroupGemm> gemm_;
  std::unique_ptr<Backend> backend_;  // null: the CPU
  const std::vector<int> versions_;
  std::vector<LayerConstants> constants_;
  std::vector<AlignedArray<std::byte>> shared_records_;
  EngineStats opened_;  // counted while the engine was opened

  LinkEstimate link_{&profile_};
  std::unique_ptr<ExpertStore> store_;
  std::unique_ptr<VersionManager> manager_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<DeviceExecutor> device_;
  std::unique_ptr<Prefetcher> prefetcher_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<LayerRunner> runner_;
  std::unique_ptr<Leases> leases_;
  AlignedArray<float> x_, y_;

  std::mutex mu_;  // everything above but plan_ and what is const, and steps_
  std::map<StepId, Step> steps_;
  StepId next_step_ = 1;

  std::mutex cancel_mu_;  // never held for long, unlike mu_
  std::map<StepId, std::shared_ptr<std::atomic<bool>>> cancel_flags_;
  std::mutex hints_mu_;
  std::vector<ExpertKey> hints_;

  mutable std::mutex published_mu_;
  EngineStats published_;
};

}  // namespace moert

#endif  // MOERT_LIB_ENGINE_ENGINE_IMPL_H_
