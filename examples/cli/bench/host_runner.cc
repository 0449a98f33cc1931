#include <algorithm>

#include "cli/bench/step_runner.h"
#include "cli/workload/random_vectors.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

class HostRunner final : public StepRunner {
 public:
  HostRunner(AttentionLoop* attention, int64_t attention_ns)
      : attention_(attention), attention_ns_(attention_ns) {}

  absl::Status Prepare(absl::Span<const StepInputs> steps) override {
    steps_ = steps;
    return absl::OkStatus();
  }

  absl::StatusOr<StepCost> Run(Engine* engine, size_t index) override {
    const StepInputs& step = steps_[index];
    const MoeModelSpec& model = engine->model();
    Reserve(model, step.rows);
    const int64_t begin_ns = engine->now_ns();
    StepInfo info;
    info.phase = step.phase;
    info.rows = step.rows;
    info.request_ids = step.request_ids;
    MOERT_ASSIGN_OR_RETURN(Step open, engine->Begin(info));
    absl::Status status;
    for (int l = 0; l < model.num_layers() && status.ok(); ++l) {
      if (attention_ != nullptr) attention_->Run(attention_ns_);
      const LayerInputs& in = step.layers[l];
      const int64_t hidden = model.layers[l].hidden;
      const float* x = in.hidden.empty() ? random_.data() : in.hidden.data();
      const MatrixView from{x, DType::kF32, step.rows, hidden, hidden};
      const MutableMatrixView to{out_.data(), DType::kF32, step.rows, hidden, hidden};
      if (in.ids.empty()) {
        status = open.Forward(l, from, to);
      } else {
        status = open.ForwardRouted(l, from, {in.ids, in.weights, in.scores, in.next_scores}, to);
      }
    }
    MOERT_RETURN_IF_ERROR(status);
    MOERT_RETURN_IF_ERROR(open.End());
    StepCost cost;
    cost.ms = static_cast<double>(engine->now_ns() - begin_ns) * 1e-6;
    return cost;
  }

 private:
  void Reserve(const MoeModelSpec& model, int64_t rows) {
    int64_t size = 0;
    for (const MoeLayerSpec& layer : model.layers) size = std::max(size, rows * layer.hidden);
    if (static_cast<int64_t>(out_.size()) >= size) return;
    out_.resize(size);
    random_.resize(size);
    for (int64_t i = 0; i < size; ++i) random_[i] = RandomNormal(1, i);
  }

  AttentionLoop* const attention_;
  const int64_t attention_ns_;
  absl::Span<const StepInputs> steps_;
  std::vector<float> out_, random_;
};

}  // namespace

std::unique_ptr<StepRunner> MakeHostRunner(AttentionLoop* attention, int64_t attention_ns) {
  return std::make_unique<HostRunner>(attention, attention_ns);
}

}  // namespace moert::cli
