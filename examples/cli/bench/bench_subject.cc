#include "cli/bench/bench_subject.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "cli/common/any_trace.h"
#include "cli/common/progress.h"
#include "cli/workload/synthetic_experts.h"
#include "moert/offline/cost_table.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

using nlohmann::json;

constexpr char kTracePrefix[] = "trace:";
// Bytes of records that devices copy from: more than the caches of a CPU hold.
constexpr int64_t kPinnedBytes = int64_t{1} << 30;

}  // namespace

/// A trace in its own shape, or its routing over experts as wide as another shape's.
absl::Status BenchSubject::OpenTraceFile(const std::string& path) {
  MOERT_ASSIGN_OR_RETURN(trace_, OpenTrace(path));
  const MoeModelSpec& recorded = trace_->header().model;
  if (o_->synthetic.empty()) {
    shape_.name = "trace";
    shape_.spec = recorded;
    const MoeLayerSpec& layer = shape_.spec.layers.front();
    shape_.attention_parameters = 4 * layer.hidden * layer.hidden;
    return absl::OkStatus();
  }
  MOERT_ASSIGN_OR_RETURN(shape_, ParseShape(o_->synthetic));
  const MoeLayerSpec wide = shape_.spec.layers.front();
  shape_.spec = recorded;
  for (MoeLayerSpec& layer : shape_.spec.layers) {
    layer.hidden = wide.hidden;
    layer.intermediate = wide.intermediate;
    layer.shared_intermediate = wide.shared_intermediate;
    layer.shared_gate = wide.shared_gate;
  }
  MOERT_ASSIGN_OR_RETURN(gates_, RecordedGates::Create(shape_.spec));
  return absl::OkStatus();
}

absl::Status BenchSubject::Open(const ModelBenchOptions& options, const DeviceBench* device) {
  o_ = &options;
  if (absl::StartsWith(o_->workload, kTracePrefix)) {
    MOERT_RETURN_IF_ERROR(OpenTraceFile(o_->workload.substr(sizeof(kTracePrefix) - 1)));
    return MakeExperts("uniform", device);  // gates only; the routing is the trace's
  }
  if (o_->synthetic.empty()) {
    return absl::InvalidArgumentError("give --synthetic SHAPE[:layers], or --workload trace:FILE");
  }
  MOERT_ASSIGN_OR_RETURN(shape_, ParseShape(o_->synthetic));
  return MakeExperts(o_->workload, device);
}

absl::Status BenchSubject::MakeExperts(const std::string& workload, const DeviceBench* device) {
  MOERT_ASSIGN_OR_RETURN(const Workload process,
                         Workload::Create(workload, shape_.spec, shape_.common_share, seed()));
  SyntheticOptions synthetic;
  synthetic.schemes = absl::StrSplit(o_->schemes, ',');
  synthetic.mixed = o_->mixed;
  if (!o_->mixed_schemes.empty()) synthetic.mixed_schemes = absl::StrSplit(o_->mixed_schemes, ',');
  synthetic.directory = o_->directory;
  if (gates_.has_value()) synthetic.gate = [this](int layer) { return gates_->Gate(layer); };
  if (device != nullptr) {
    synthetic.memory_bytes = kPinnedBytes;
  }
  if (device != nullptr && o_->host_budget.empty()) {
    synthetic.pin = [device](std::byte* data, int64_t bytes) { return device->Pin(data, bytes); };
  }
  Progress progress("writing experts", !o_->quiet);
  synthetic.progress = [&](int64_t done, int64_t total) { progress.Update(done, total); };
  MOERT_ASSIGN_OR_RETURN(experts_, MakeSyntheticExperts(shape_, process, seed(), synthetic));
  return absl::OkStatus();
}

StepPlan BenchSubject::Plan(int64_t batch) const {
  StepPlan plan;
  plan.phase = o_->prefill() ? Phase::kPrefill : Phase::kDecode;
  plan.batch = batch;
  plan.prompt_tokens = o_->prompt;
  plan.steps = o_->warm + o_->repeats * o_->steps;
  return plan;
}

int64_t BenchSubject::Rows(int64_t batch) const {
  return recorded() ? trace_->header().max_tokens : Plan(batch).rows();
}

absl::StatusOr<std::unique_ptr<StepSource>> BenchSubject::Steps(int64_t batch, ThreadPool* makers) {
  if (recorded()) {
    MOERT_RETURN_IF_ERROR(trace_->Rewind());
    return gates_.has_value() ? MakeRecordedSteps(trace_.get(), &*gates_)
                              : MakeTraceSteps(trace_.get());
  }
  MOERT_ASSIGN_OR_RETURN(Workload process,
                         Workload::Create(o_->workload, shape_.spec, shape_.common_share, seed()));
  return MakeWorkloadSteps(std::move(process), shape_.spec, Plan(batch), makers);
}

absl::StatusOr<RoutingHistory> BenchSubject::History(int64_t batch) {
  const int64_t steps = o_->warm + o_->repeats * o_->steps;
  if (recorded()) return RoutingHistory::Read(trace_.get(), o_->warm, steps);
  MOERT_ASSIGN_OR_RETURN(const std::unique_ptr<TraceReader> made_up,
                         MakeWorkloadTrace(shape_, o_->workload, seed(), Plan(batch)));
  return RoutingHistory::Read(made_up.get(), o_->warm, steps);
}

absl::StatusOr<json> PredictVersions(const std::string& costs, const ExpertSource& experts,
                                     const RoutingHistory& history) {
  MOERT_ASSIGN_OR_RETURN(const CostTable table, LoadCostTable(costs, Env::Default()));
  const MoeModelSpec& model = experts.model();
  std::vector<std::vector<double>> tokens;  // [layer][expert]
  for (const MoeLayerSpec& layer : model.layers) tokens.emplace_back(layer.num_experts, 0.0);
  for (const RoutingHistory::Call& call : history.calls()) {
    for (size_t i = 0; call.counted && i < call.experts.size(); ++i) {
      tokens[call.layer][call.experts[i]] +=
          static_cast<double>(call.tokens[i]) / static_cast<double>(history.counted_steps());
    }
  }
  json versions = json::object();
  for (int v = 0; v < experts.num_versions(); ++v) {
    double seconds = 0, bytes = 0, weights = 0;
    for (int l = 0; l < model.num_layers(); ++l) {
      for (size_t e = 0; e < tokens[l].size(); ++e) {
        const RecordLayout& layout = experts.layout(l, static_cast<int>(e), v);
        for (const MatrixLayout* m : {&layout.gate, &layout.up, &layout.down}) {
          const int64_t stored = m->weight_bytes + m->scale_bytes;
          MOERT_ASSIGN_OR_RETURN(const double s, table.Seconds(m->scheme, stored, tokens[l][e]));
          seconds += s;
          bytes += static_cast<double>(stored);
          weights += static_cast<double>(m->rows * m->k);
        }
      }
    }
    versions[std::string(experts.version_name(v))] = {
        {"stored_bits", 8 * bytes / weights},
        {"bytes_a_layer", bytes / model.num_layers()},
        {"predicted_us_a_layer", 1e6 * seconds / model.num_layers()}};
  }
  return versions;
}

}  // namespace moert::cli
