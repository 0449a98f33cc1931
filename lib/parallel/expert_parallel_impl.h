// A rank of ExpertParallel.
#ifndef MOERT_LIB_PARALLEL_EXPERT_PARALLEL_IMPL_H_
#define MOERT_LIB_PARALLEL_EXPERT_PARALLEL_IMPL_H_

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "exec/step_fence.h"
#include "moert/parallel/expert_parallel.h"
#include "parallel/placed_ids.h"
#include "parallel/step_split.h"
#include "parallel/token_exchange.h"

namespace moert {

/// The parts that a rank on a device has in addition to its engine; null on the CPU.
struct DeviceParts {
  std::unique_ptr<StepFence> fence;
  std::unique_ptr<RowKernels> kernels;
};

class ExpertParallelImpl final : public ExpertParallel {
 public:
  /// `whole`: the whole model, including shared experts that the engine may not have.
  ExpertParallelImpl(const MoeModelSpec& whole, std::unique_ptr<Engine> engine,
                     const std::vector<ShardPlan>& plans, std::shared_ptr<Collectives> group,
                     DeviceParts device, int64_t max_rows)
      : group_(std::move(group)),
        fence_(std::move(device.fence)),
        engine_(std::move(engine)),
        exchange_(whole, plans, group_.get()),
        max_rows_(max_rows) {
    if (device.kernels == nullptr) return;
    rows_ = std::make_unique<RowExchange>(engine_->model(), std::move(device.kernels), group_.get(),
                                          max_rows);
  }
  ~ExpertParallelImpl() override;

  absl::StatusOr<StepId> BeginStep(const StepInfo& info, TokenPlacement placement) override;
  absl::Status Forward(StepId step, int layer, const MatrixView& hidden, const RoutedInput* routing,
                       const MutableMatrixView& out) override;
  absl::Status EndStep(StepId id) override;

  /// Makes this a group with placed experts, which can move between ranks.
  absl::Status StartPlaced(const ExpertPlacement& placement, std::unique_ptr<PlacedIds> placed);
  /// Collective, called once all ranks are made: finds out whether each rank has room for every
  /// expert. If so, measures the cost of exchanges, by which steps are split.
  absl::Status AgreeOnSplit(const ExpertSource& source, const EngineOptions& options);
  absl::Status MoveExperts(const ExpertPlacement& placement) override;
  absl::StatusOr<std::vector<std::vector<double>>> TakeLoads() override;
  void SetExchange(const ExchangeOptions& options) override { options_ = options; }
  Engine* engine() override { return engine_.get(); }
  ExpertParallelStats stats() const override {
    ExpertParallelStats stats = stats_;
    stats.sent_rows += exchange_.sent_rows();
    stats.received_rows += exchange_.received_rows();
    if (rows_ != nullptr) stats.device_bytes = rows_->bytes();
    return stats;
  }

 private:
  struct Step {
    TokenPlacement placement = TokenPlacement::kReplicated;
    int64_t rows = 0;         // rows of this rank
    int64_t engine_rows = 0;  // rows of the engine's calls
    void* stream = nullptr;
    StepSplit split = StepSplit::kExperts;
    bool narrow = false;  // parts travel as bf16
  };

  bool on_device() const { return engine_->backend() == BackendKind::kCuda; }

  absl::Status CheckRows(const StepInfo& info, Step* step);
  /// Sets the split of a step of `all` rows, and the fields that depend on it.
  absl::Status Split(int64_t all, bool every_rank_has_rows, Step* step) const;
  /// The description of a step for the engine.
  StepInfo EngineInfo(const StepInfo& info, const Step& step) const;
  absl::Status CheckTotal(int64_t rows) const;
  absl::Status CheckPlaced() const;
  /// Waits for the device's work of steps.
  absl::Status AwaitSteps() { return fence_ == nullptr ? absl::OkStatus() : fence_->Await(); }
  absl::Status CheckCall(const Step& step, int layer, const MatrixView& hidden,
                         const RoutedInput* routing, const MutableMatrixView& out) const;
  absl::Status Replicated(StepId id, const Step& step, int layer, const MatrixView& hidden,
                          const RoutedInput* routing, const MutableMatrixView& out);
  /// The first row of a rank's block of a step's rows. Blocks are equally long, so the last ones
  /// may overlap.
  static int64_t BlockBegin(const Step& step, int rank) {
    return std::min(rank * step.engine_rows, step.rows - step.engine_rows);
  }
  absl::Status Blocks(StepId id, const Step& step, int layer, const MatrixView& hidden,
                      const RoutedInput& routing, const MutableMatrixView& out);
  absl::StatusOr<MutableMatrixView> Scratch(const Step& step, int64_t cols);
  absl::Status AddUp(const Step& step, const MutableMatrixView& part, const MutableMatrixView& out);
  absl::Status OwnOnDevice(StepId id, const Step& step, int layer, const MatrixView& hidden,
                           const RoutedInput& routing, const MutableMatrixView& out);
  absl::Status CheckRouting(const Step& step, int layer, const RoutedInput* routing) const;
  absl::Status Own(StepId id, const Step& step, int layer, const MatrixView& hidden,
                   const RoutedInput& routing, const MutableMatrixView& out);
  absl::Status Multiply(StepId id, const Step& step, int layer, int64_t k, ExchangedRows* rows);
  /// On an error, aborts the group, so that the other ranks do not wait for this one.
  absl::Status OrAbort(absl::Status status) {
    if (status.ok()) return status;
    if (fence_ != nullptr) fence_->Miss();  // the work already enqueued is not known
    group_->Abort(status);
    return status;
  }
  /// Runs a collective on the host, timed.
  template <typename Call>
  absl::Status Timed(const Call& call) {
    const auto begin = std::chrono::steady_clock::now();
    const absl::Status status = call();
    const auto took = std::chrono::steady_clock::now() - begin;
    stats_.exchange_ns += std::chrono::duration_cast<std::chrono::nanoseconds>(took).count();
    return status;
  }

  const std::shared_ptr<Collectives> group_;
  const std::unique_ptr<StepFence> fence_;  // for buffers of rows_ and placed_; null: on the CPU
  const std::unique_ptr<Engine> engine_;
  TokenExchange exchange_;             // in host memory
  std::unique_ptr<RowExchange> rows_;  // on a device; else null
  std::unique_ptr<PlacedIds> placed_;  // null: ranks own shards
  std::unique_ptr<SplitRule> rule_;    // null: some rank has no room for every expert
  const int64_t max_rows_;
  ExchangeOptions options_;
  std::map<StepId, Step> steps_;
  ExpertParallelStats stats_;
  std::vector<float> x_, y_;  // scratch
};

}  // namespace moert

#endif  // MOERT_LIB_PARALLEL_EXPERT_PARALLEL_IMPL_H_
