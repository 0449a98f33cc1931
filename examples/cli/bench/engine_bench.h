// Runs strategies against each other on one workload: engines of one budget take turns on the same
// steps, repetition by repetition, so that other load on the machine affects all of them alike.
#ifndef MOERT_EXAMPLES_CLI_BENCH_ENGINE_BENCH_H_
#define MOERT_EXAMPLES_CLI_BENCH_ENGINE_BENCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/bench/step_runner.h"
#include "cli/bench/step_source.h"
#include "moert/engine.h"

namespace moert::cli {

struct Variant {
  std::string strategy;
  std::string budget;  // as typed
  std::unique_ptr<Engine> engine;

  // Results.
  std::vector<std::vector<StepCost>> steps;  // [repetition][step]
  EngineStats before;                        // when the warm-up ended
  std::string refused;                       // why there is no engine, if there is none
};

struct BenchRun {
  int64_t warm_steps = 0;
  int64_t repetitions = 0;
  int64_t steps = 0;  // of a repetition
  /// Called when the warm-up ends: may give engines to variants that have none. May be null.
  std::function<absl::Status(std::vector<Variant>* variants)> warmed;
  std::function<void(int64_t done, int64_t total)> progress;
};

/// Runs the warm-up and every repetition on all variants that have an engine.
absl::Status RunVariants(StepSource* source, StepRunner* runner, const BenchRun& run,
                         std::vector<Variant>* variants);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_BENCH_ENGINE_BENCH_H_
