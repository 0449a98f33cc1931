#include "cli/bench/step_source.h"

#include <utility>

#include "fmt/format.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

class WorkloadSteps final : public StepSource {
 public:
  WorkloadSteps(Workload workload, const MoeModelSpec& model, const StepPlan& plan,
                ThreadPool* pool)
      : workload_(std::move(workload)), model_(model), plan_(plan), pool_(pool) {}

  absl::StatusOr<bool> Next(StepInputs* step) override {
    if (step_ == plan_.steps) return false;
    step->phase = plan_.phase;
    step->request_ids = plan_.Requests(step_++);
    step->rows = static_cast<int64_t>(step->request_ids.size());
    step->layers.resize(model_.layers.size());
    std::vector<WorkloadRow> rows;
    for (const int64_t id : step->request_ids) rows.push_back({id});
    workload_.BeginStep(rows);
    for (size_t l = 0; l < model_.layers.size(); ++l) {
      workload_.NextLayer();
      step->layers[l].hidden.resize(step->rows * model_.layers[l].hidden);
      workload_.Hidden(step->layers[l].hidden.data(), pool_);
    }
    return true;
  }

 private:
  Workload workload_;
  const MoeModelSpec model_;
  const StepPlan plan_;
  ThreadPool* const pool_;
  int64_t step_ = 0;
};

class TraceSteps final : public StepSource {
 public:
  explicit TraceSteps(TraceReader* trace) : trace_(trace) {}

  absl::StatusOr<bool> Next(StepInputs* step) override {
    if (call_ == nullptr) MOERT_RETURN_IF_ERROR(Advance());
    if (call_ == nullptr) return false;
    const int64_t number = call_->step;
    const size_t layers = trace_->header().model.layers.size();
    step->phase = call_->phase;
    step->rows = call_->tokens;
    step->request_ids.assign(call_->request_ids.begin(), call_->request_ids.end());
    step->layers.assign(layers, {});
    size_t seen = 0;
    for (; call_ != nullptr && call_->step == number; ++seen) {
      LayerInputs& layer = step->layers[call_->layer];
      layer.ids.assign(call_->ids.begin(), call_->ids.end());
      layer.weights.assign(call_->weights.begin(), call_->weights.end());
      layer.scores.assign(call_->scores.begin(), call_->scores.end());
      layer.next_scores.assign(call_->next_scores.begin(), call_->next_scores.end());
      MOERT_RETURN_IF_ERROR(Advance());
    }
    if (seen != layers) {
      return absl::InvalidArgumentError(fmt::format(
          "step {} of the trace has {} layer calls, the model {} layers", number, seen, layers));
    }
    return true;
  }

 private:
  absl::Status Advance() {
    MOERT_ASSIGN_OR_RETURN(call_, trace_->Next());
    return absl::OkStatus();
  }

  TraceReader* trace_;
  const TraceCall* call_ = nullptr;
};

class RecordedSteps final : public StepSource {
 public:
  RecordedSteps(TraceReader* trace, const RecordedGates* gates) : trace_(trace), gates_(gates) {}

  absl::StatusOr<bool> Next(StepInputs* step) override {
    MOERT_ASSIGN_OR_RETURN(const bool there_is, trace_.Next(step));
    if (!there_is) return false;
    for (size_t l = 0; l < step->layers.size(); ++l) {
      const LayerInputs recorded = std::exchange(step->layers[l], {});
      if (recorded.scores.empty()) {
        return absl::InvalidArgumentError(
            "the trace has no scores; record it with scores of all experts");
      }
      step->layers[l].hidden =
          gates_->Hidden(static_cast<int>(l), step->rows, recorded.scores, recorded.next_scores);
    }
    return true;
  }

 private:
  TraceSteps trace_;
  const RecordedGates* const gates_;
};

}  // namespace

std::unique_ptr<StepSource> MakeWorkloadSteps(Workload workload, const MoeModelSpec& model,
                                              const StepPlan& plan, ThreadPool* pool) {
  return std::make_unique<WorkloadSteps>(std::move(workload), model, plan, pool);
}

std::unique_ptr<StepSource> MakeTraceSteps(TraceReader* trace) {
  return std::make_unique<TraceSteps>(trace);
}

std::unique_ptr<StepSource> MakeRecordedSteps(TraceReader* trace, const RecordedGates* gates) {
  return std::make_unique<RecordedSteps>(trace, gates);
}

}  // namespace moert::cli
