// StepRunner: runs the steps of a benchmark where a host of that backend has its hidden states.
#ifndef MOERT_EXAMPLES_CLI_BENCH_STEP_RUNNER_H_
#define MOERT_EXAMPLES_CLI_BENCH_STEP_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/bench/step_source.h"
#include "cli/probe/attention_loop.h"
#include "moert/engine.h"

namespace moert::cli {

/// The times of one step.
struct StepCost {
  double ms = 0;  // from its beginning to its last output
  // On a device:
  double begin_ms = 0;    // BeginStep: the device is idle, what it takes is not hidden
  double host_ms = 0;     // CPU time of the calling thread until everything was enqueued...
  double waited_ms = -1;  // ...of it inside calls of the driver that wait; -1: not counted
  int64_t waits = -1;     // such calls
  int64_t launches = -1;  // kernels and graphs
  bool replayed = false;  // from a CUDA graph
  /// Between the ends of successive layers on the device's clock, attention included; empty: not
  /// asked for.
  std::vector<float> layer_us;
};

class StepRunner {
 public:
  virtual ~StepRunner() = default;
  /// Prepares these steps in place of the previous ones, before any clock runs. They are borrowed
  /// until the next call.
  virtual absl::Status Prepare(absl::Span<const StepInputs> steps) = 0;
  /// Runs a prepared step: attention and an MoE layer call in turn.
  virtual absl::StatusOr<StepCost> Run(Engine* engine, size_t step) = 0;
};

/// Hidden states in host memory; times are by the engine's clock. `attention` may be null: none.
std::unique_ptr<StepRunner> MakeHostRunner(AttentionLoop* attention, int64_t attention_ns);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_BENCH_STEP_RUNNER_H_
