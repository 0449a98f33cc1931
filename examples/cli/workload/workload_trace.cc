#include "cli/workload/workload_trace.h"

#include <utility>

#include "moert/router.h"
#include "moert/scheme.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

class WorkloadTrace final : public TraceReader {
 public:
  WorkloadTrace(TraceHeader header, Workload workload, const StepPlan& plan)
      : header_(std::move(header)),
        initial_(workload),
        workload_(std::move(workload)),
        plan_(plan) {}

  const TraceHeader& header() const override { return header_; }

  absl::Status Rewind() override {
    workload_ = initial_;
    step_ = -1;
    layer_ = header_.model.num_layers() - 1;
    return absl::OkStatus();
  }

  absl::StatusOr<const TraceCall*> Next() override {
    const MoeModelSpec& model = header_.model;
    if (++layer_ == model.num_layers()) {
      if (step_ + 1 == plan_.steps) {
        --layer_;
        return nullptr;
      }
      ++step_;
      layer_ = 0;
      request_ids_ = plan_.Requests(step_);
      std::vector<WorkloadRow> rows;
      for (const int64_t id : request_ids_) rows.push_back({id});
      workload_.BeginStep(rows);
    }
    workload_.NextLayer();
    MOERT_RETURN_IF_ERROR(Route(layer_, &scores_, &ids_, &weights_));
    MOERT_RETURN_IF_ERROR(
        Route((layer_ + 1) % model.num_layers(), &next_scores_, &next_ids_, &next_weights_));
    call_ = {};
    call_.step = step_;
    call_.phase = plan_.phase;
    call_.layer = layer_;
    call_.tokens = static_cast<int64_t>(request_ids_.size());
    call_.request_ids = request_ids_;
    call_.ids = ids_;
    call_.weights = weights_;
    call_.scores = scores_;
    call_.next_scores = next_scores_;
    return &call_;
  }

 private:
  absl::Status Route(int layer, std::vector<float>* scores, std::vector<int32_t>* ids,
                     std::vector<float>* weights) {
    const MoeLayerSpec& spec = header_.model.layers[layer];
    const auto rows = static_cast<int64_t>(request_ids_.size());
    const int64_t experts = spec.num_experts;
    const int64_t k = spec.routing.top_k;
    logits_.resize(rows * experts);
    scores->resize(rows * experts);
    ids->resize(rows * k);
    weights->resize(rows * k);
    workload_.Logits(layer, logits_.data());
    bias_.assign(spec.routing.selection_bias ? experts : 0, 0.0f);
    for (int64_t t = 0; t < rows; ++t) {
      MOERT_RETURN_IF_ERROR(RouteToken(
          spec.routing, absl::MakeConstSpan(logits_).subspan(t * experts, experts), bias_,
          scores->data() + t * experts, ids->data() + t * k, weights->data() + t * k));
    }
    return absl::OkStatus();
  }

  const TraceHeader header_;
  const Workload initial_;
  Workload workload_;
  const StepPlan plan_;
  int64_t step_ = -1;
  int layer_ = 0;
  TraceCall call_;
  std::vector<int64_t> request_ids_;
  std::vector<int32_t> ids_, next_ids_;
  std::vector<float> logits_, bias_, weights_, scores_, next_scores_, next_weights_;
};

}  // namespace

std::vector<int64_t> StepPlan::Requests(int64_t step) const {
  std::vector<int64_t> ids;
  for (int64_t b = 0; b < batch; ++b) {
    // Every prefill step brings new requests.
    const int64_t id = phase == Phase::kPrefill ? step * batch + b : b;
    ids.insert(ids.end(), phase == Phase::kPrefill ? prompt_tokens : 1, id);
  }
  return ids;
}

absl::StatusOr<TraceHeader> HeaderOf(const Shape& shape, const std::vector<std::string>& schemes,
                                     int64_t max_tokens) {
  TraceHeader header;
  header.model = shape.spec;
  header.source = shape.name;
  header.max_tokens = max_tokens;
  for (const std::string& name : schemes) {
    MOERT_ASSIGN_OR_RETURN(const Scheme scheme, Scheme::Parse(name));
    TraceVersion& version = header.versions.emplace_back();
    version.name = name;
    for (const MoeLayerSpec& layer : shape.spec.layers) {
      MOERT_ASSIGN_OR_RETURN(const RecordLayout layout,
                             ExpertRecordLayout(layer, ExpertFormat::Uniform(scheme)));
      version.bytes.emplace_back(layer.num_experts, layout.bytes);
    }
  }
  return header;
}

absl::StatusOr<std::unique_ptr<TraceReader>> MakeWorkloadTrace(
    const Shape& shape, const std::string& workload, uint64_t seed, const StepPlan& plan,
    const std::vector<std::string>& schemes) {
  MOERT_ASSIGN_OR_RETURN(TraceHeader header, HeaderOf(shape, schemes, plan.rows()));
  MOERT_ASSIGN_OR_RETURN(Workload process,
                         Workload::Create(workload, shape.spec, shape.common_share, seed));
  auto trace = std::make_unique<WorkloadTrace>(std::move(header), std::move(process), plan);
  MOERT_RETURN_IF_ERROR(trace->Rewind());
  return trace;
}

}  // namespace moert::cli
