// The inputs of moert-bench decode, prefill and layer: experts of a shape, and the routing of the
// steps, from a workload or a recorded trace.
#ifndef MOERT_EXAMPLES_CLI_BENCH_BENCH_SUBJECT_H_
#define MOERT_EXAMPLES_CLI_BENCH_BENCH_SUBJECT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/bench/device_bench.h"
#include "cli/bench/model_options.h"
#include "cli/bench/step_source.h"
#include "cli/workload/oracles.h"
#include "cli/workload/recorded_gates.h"
#include "cli/workload/shapes.h"
#include "moert/source/expert_source.h"
#include "moert/tools/trace.h"
#include "nlohmann/json.hpp"

namespace moert::cli {

class BenchSubject {
 public:
  /// Makes the experts; with a device their records are page-locked. The options are borrowed for
  /// the object's life, the device, which may be null, until the experts are gone.
  absl::Status Open(const ModelBenchOptions& options, const DeviceBench* device);

  const Shape& shape() const { return shape_; }
  const std::shared_ptr<const ExpertSource>& experts() const { return experts_; }
  bool recorded() const { return trace_ != nullptr; }
  StepPlan Plan(int64_t batch) const;
  /// Rows of a step; a trace has its own number.
  int64_t Rows(int64_t batch) const;

  /// The steps of a run from the first on. The borrowed pool makes hidden states; null: the calling
  /// thread does.
  absl::StatusOr<std::unique_ptr<StepSource>> Steps(int64_t batch, ThreadPool* makers);
  /// The routing of the same steps. A workload's hidden states and logits give the same routing.
  absl::StatusOr<RoutingHistory> History(int64_t batch);

 private:
  absl::Status OpenTraceFile(const std::string& path);
  absl::Status MakeExperts(const std::string& workload, const DeviceBench* device);
  uint64_t seed() const { return static_cast<uint64_t>(o_->seed); }

  const ModelBenchOptions* o_ = nullptr;
  Shape shape_;
  std::unique_ptr<TraceReader> trace_;  // null for a made-up workload
  std::optional<RecordedGates> gates_;  // of a trace over the experts of another shape
  std::shared_ptr<const ExpertSource> experts_;
};

/// Predictions for every version: its stored bits, and its time by the cost table in the file
/// `costs` (MxMoE's T) for the average number of tokens of an expert.
absl::StatusOr<nlohmann::json> PredictVersions(const std::string& costs,
                                               const ExpertSource& experts,
                                               const RoutingHistory& history);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_BENCH_BENCH_SUBJECT_H_
