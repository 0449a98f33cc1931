#include "examples/cli/bench/engine_bench.h"

#include <algorithm>

#include "base/status_macros.h"
#include "examples/cli/workload/random_vectors.h"
#include "fmt/format.h"

namespace moert::cli {
namespace {

class Runner {
 public:
  explicit Runner(const BenchRun& run) : run_(run) {}

  /// The step's time in milliseconds, on the engine's clock.
  absl::StatusOr<double> Step(Engine* engine, const StepInputs& step) {
    const MoeModelSpec& model = engine->model();
    Reserve(model, step.rows);
    const int64_t begin_ns = engine->now_ns();
    StepInfo info;
    info.phase = step.phase;
    info.rows = step.rows;
    info.request_ids = step.request_ids;
    MOERT_ASSIGN_OR_RETURN(const StepId id, engine->BeginStep(info));
    absl::Status status;
    for (int l = 0; l < model.num_layers() && status.ok(); ++l) {
      if (run_.attention != nullptr) run_.attention->Run(run_.attention_ns);
      const LayerInputs& in = step.layers[l];
      const int64_t hidden = model.layers[l].hidden;
      const float* x = in.hidden.empty() ? random_.data() : in.hidden.data();
      const MatrixView from{x, DType::kF32, step.rows, hidden, hidden};
      const MutableMatrixView to{out_.data(), DType::kF32, step.rows, hidden, hidden};
      if (in.ids.empty()) {
        status = engine->Forward(id, l, from, to);
      } else {
        status =
            engine->ForwardRouted(id, l, from, {in.ids, in.weights, in.scores, in.next_scores}, to);
      }
    }
    const absl::Status ended = engine->EndStep(id);
    MOERT_RETURN_IF_ERROR(status);
    MOERT_RETURN_IF_ERROR(ended);
    return static_cast<double>(engine->now_ns() - begin_ns) * 1e-6;
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

  const BenchRun& run_;
  std::vector<float> out_, random_;
};

}  // namespace

absl::Status RunVariants(StepSource* steps, const BenchRun& run, std::vector<Variant>* variants) {
  Runner runner(run);
  std::vector<Variant*> running;
  for (Variant& v : *variants) {
    if (v.engine != nullptr) running.push_back(&v);
  }
  const int64_t total = run.warm_steps + run.repetitions * run.steps;
  int64_t done = 0;
  const auto next = [&](StepInputs* step) -> absl::Status {
    MOERT_ASSIGN_OR_RETURN(const bool more, steps->Next(step));
    if (more) return absl::OkStatus();
    return absl::InvalidArgumentError(
        fmt::format("the trace has {} steps, the run takes {}", done, total));
  };
  StepInputs one;
  for (int64_t s = 0; s < run.warm_steps; ++s) {
    MOERT_RETURN_IF_ERROR(next(&one));
    for (Variant* v : running) MOERT_RETURN_IF_ERROR(runner.Step(v->engine.get(), one).status());
    if (run.progress) run.progress(++done, total);
  }
  for (Variant* v : running) v->before = v->engine->stats();
  std::vector<StepInputs> inputs(run.steps);
  for (int64_t r = 0; r < run.repetitions; ++r) {
    // Made before the clock runs: between two layers there is attention, nothing else.
    for (StepInputs& step : inputs) MOERT_RETURN_IF_ERROR(next(&step));
    for (size_t i = 0; i < running.size(); ++i) {
      Variant* v = running[(i + r) % running.size()];
      std::vector<double>& ms = v->step_ms.emplace_back();
      for (const StepInputs& step : inputs) {
        MOERT_ASSIGN_OR_RETURN(const double t, runner.Step(v->engine.get(), step));
        ms.push_back(t);
      }
    }
    done += run.steps;
    if (run.progress) run.progress(done, total);
  }
  return absl::OkStatus();
}

}  // namespace moert::cli
