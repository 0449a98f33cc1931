// The inputs of a run's steps, made before the clock runs: gate inputs of a workload, or the
// routing of a recorded trace.
#ifndef MOERT_EXAMPLES_CLI_BENCH_STEP_SOURCE_H_
#define MOERT_EXAMPLES_CLI_BENCH_STEP_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/workload/recorded_gates.h"
#include "cli/workload/workload_trace.h"
#include "moert/engine.h"
#include "moert/thread_pool.h"

namespace moert::cli {

struct LayerInputs {
  std::vector<float> hidden;  // [rows, hidden]; empty: the same random rows in every layer
  // The ids of a recorded routing, else empty.
  std::vector<int32_t> ids;
  std::vector<float> weights, scores, next_scores;
};

struct StepInputs {
  Phase phase = Phase::kDecode;
  int64_t rows = 0;
  std::vector<int64_t> request_ids;
  std::vector<LayerInputs> layers;
};

class StepSource {
 public:
  virtual ~StepSource() = default;
  /// False at the end.
  virtual absl::StatusOr<bool> Next(StepInputs* step) = 0;
};

/// The borrowed pool makes rows in parallel; null: the calling thread makes them.
std::unique_ptr<StepSource> MakeWorkloadSteps(Workload workload, const MoeModelSpec& model,
                                              const StepPlan& plan, ThreadPool* pool = nullptr);
/// The trace is borrowed.
std::unique_ptr<StepSource> MakeTraceSteps(TraceReader* trace);
/// The same steps as hidden states that the gates route as recorded. Both are borrowed.
std::unique_ptr<StepSource> MakeRecordedSteps(TraceReader* trace, const RecordedGates* gates);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_BENCH_STEP_SOURCE_H_
