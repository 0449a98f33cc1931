// A workload as a trace that is generated as it is read: for replay and oracles, without weights.
#ifndef MOERT_EXAMPLES_CLI_WORKLOAD_WORKLOAD_TRACE_H_
#define MOERT_EXAMPLES_CLI_WORKLOAD_WORKLOAD_TRACE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/workload/shapes.h"
#include "cli/workload/workload.h"
#include "moert/tools/trace.h"

namespace moert::cli {

/// The steps of a run: `batch` requests that decode side by side, or one new prompt a step.
struct StepPlan {
  Phase phase = Phase::kDecode;
  int64_t steps = 0;
  int64_t batch = 1;          // requests of a step
  int64_t prompt_tokens = 1;  // rows of each in a prefill step

  int64_t rows() const { return phase == Phase::kPrefill ? batch * prompt_tokens : batch; }
  /// Requests of step `step`, one a row.
  std::vector<int64_t> Requests(int64_t step) const;
};

/// Every expert in each of `schemes`, most bits first.
absl::StatusOr<TraceHeader> HeaderOf(const Shape& shape, const std::vector<std::string>& schemes,
                                     int64_t max_tokens);

absl::StatusOr<std::unique_ptr<TraceReader>> MakeWorkloadTrace(
    const Shape& shape, const std::string& workload, uint64_t seed, const StepPlan& plan,
    const std::vector<std::string>& schemes = {"bf16"});

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_WORKLOAD_WORKLOAD_TRACE_H_
