#include "cli/bench/engine_bench.h"

#include "fmt/format.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

std::vector<Variant*> Running(std::vector<Variant>* variants) {
  std::vector<Variant*> running;
  for (Variant& v : *variants) {
    if (v.engine != nullptr) running.push_back(&v);
  }
  return running;
}

}  // namespace

absl::Status RunVariants(StepSource* source, StepRunner* runner, const BenchRun& run,
                         std::vector<Variant>* variants) {
  const int64_t total = run.warm_steps + run.repetitions * run.steps;
  int64_t done = 0;
  const auto next = [&](StepInputs* step) -> absl::Status {
    MOERT_ASSIGN_OR_RETURN(const bool more, source->Next(step));
    if (more) return absl::OkStatus();
    return absl::InvalidArgumentError(
        fmt::format("the trace has {} steps, the run takes {}", done, total));
  };
  std::vector<StepInputs> inputs(1);
  for (int64_t s = 0; s < run.warm_steps; ++s) {
    MOERT_RETURN_IF_ERROR(next(&inputs[0]));
    MOERT_RETURN_IF_ERROR(runner->Prepare(inputs));
    for (Variant* v : Running(variants)) {
      MOERT_RETURN_IF_ERROR(runner->Run(v->engine.get(), 0).status());
    }
    if (run.progress) run.progress(++done, total);
  }
  if (run.warmed) MOERT_RETURN_IF_ERROR(run.warmed(variants));
  const std::vector<Variant*> running = Running(variants);
  for (Variant* v : running) v->before = v->engine->stats();
  inputs.resize(run.steps);
  for (int64_t r = 0; r < run.repetitions; ++r) {
    // Made before the clock runs: between two layers there is attention, nothing else.
    for (StepInputs& step : inputs) MOERT_RETURN_IF_ERROR(next(&step));
    MOERT_RETURN_IF_ERROR(runner->Prepare(inputs));
    for (size_t i = 0; i < running.size(); ++i) {
      Variant* v = running[(i + r) % running.size()];
      std::vector<StepCost>& costs = v->steps.emplace_back();
      for (size_t s = 0; s < inputs.size(); ++s) {
        MOERT_ASSIGN_OR_RETURN(StepCost cost, runner->Run(v->engine.get(), s));
        costs.push_back(std::move(cost));
      }
    }
    done += run.steps;
    if (run.progress) run.progress(done, total);
  }
  return absl::OkStatus();
}

}  // namespace moert::cli
