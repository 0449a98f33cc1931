// The subject of moert-bench decode, prefill and layer: experts of a shape, and the origin of their
// steps' routing, a workload or a recorded trace.
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
  /// good, the device until the experts are gone (it may be null).
  absl::Status Open(const ModelBenchOptions& options, const DeviceBench* device);

  const Shape& shape() const { return shape_; }
  const std::shared_ptr<const ExpertSource>& experts() const { return experts_; }
  bool recorded() const { return trace_ != nullptr; }
  StepPlan Plan(int64_t batch) const;
  /// Rows of a step: a trace has its own.
  int64_t Rows(int64_t batch) const;

  /// The steps of a run from its first on; the pool, borrowed, makes hidden states (null: the
  /// caller alone).
  absl::StatusOr<std::unique_ptr<StepSource>> Steps(int64_t batch, ThreadPool* makers);
  /// The routing of the same steps. Hidden states and logits of a workload give the same.
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

/// Predicts for every version: its stored bits, and what the cost table in the file `costs` makes
/// of it (MxMoE's T) for as many tokens as each expert got on average.
absl::StatusOr<nlohmann::json> PredictVersions(const std::string& costs,
                                               const ExpertSource& experts,
                                               const RoutingHistory& history);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_BENCH_BENCH_SUBJECT_H_
