// Recorded decode routing of trained models: three tensors of a safetensors file.

#include <cmath>
#include <new>

#include "base/errors.h"
#include "base/exception_status.h"
#include "base/printable.h"
#include "base/status_macros.h"
#include "moert/offline/checkpoint.h"
#include "moert/tools/trace.h"

namespace moert {
namespace {

class RecordedRouting final : public TraceReader {
 public:
  RecordedRouting(std::unique_ptr<Checkpoint> file, const TraceHeader& header)
      : file_(std::move(file)), header_(header) {
    header_.max_tokens = 1;
  }

  absl::Status Open() {
    const MoeModelSpec& model = header_.model;
    MOERT_RETURN_IF_ERROR(model.Validate());
    const MoeLayerSpec& first = model.layers.front();
    for (const MoeLayerSpec& layer : model.layers) {
      if (layer.num_experts == first.num_experts && layer.routing == first.routing) continue;
      return absl::InvalidArgumentError(file_->path() +
                                        ": recorded routing is of models whose layers are alike");
    }
    if (first.routing.kind != RoutingKind::kSoftmaxTopK &&
        first.routing.kind != RoutingKind::kTopKSoftmax) {
      return InvalidArgument("{}: weights of {} routing do not follow from its scores",
                             file_->path(), std::string(RoutingKindName(first.routing.kind)));
    }
    MOERT_ASSIGN_OR_RETURN(ids_, file_->Get("topk_ids"));
    MOERT_ASSIGN_OR_RETURN(scores_, file_->Get("scores"));
    MOERT_ASSIGN_OR_RETURN(predicted_, file_->Get("predicted_scores"));
    if (ids_->dtype != DType::kU8 || ids_->shape.size() != 4) {
      return absl::InvalidArgumentError(file_->path() + ": topk_ids must be U8 [S, T, L, K]");
    }
    sequences_ = ids_->shape[0];
    tokens_ = ids_->shape[1];
    const int64_t layers = model.num_layers();
    const std::vector<int64_t> want_ids = {sequences_, tokens_, layers, first.routing.top_k};
    const std::vector<int64_t> want_scores = {sequences_, tokens_, layers, first.num_experts};
    const std::vector<int64_t> want_predicted = {sequences_, tokens_, layers - 1,
                                                 first.num_experts};
    for (const auto& [tensor, shape] : {std::pair(ids_, want_ids), std::pair(scores_, want_scores),
                                        std::pair(predicted_, want_predicted)}) {
      if (tensor->shape == shape) continue;
      return InvalidArgument("{}: {} is {}, the model wants {}", file_->path(),
                             Printable(tensor->name), ShapeToString(tensor->shape),
                             ShapeToString(shape));
    }
    return Rewind();
  }

  const TraceHeader& header() const override { return header_; }

  absl::Status Rewind() override {
    step_ = -1;
    layer_ = header_.model.num_layers() - 1;
    return absl::OkStatus();
  }

  absl::StatusOr<const TraceCall*> Next() override {
    const int layers = header_.model.num_layers();
    if (++layer_ == layers) {
      layer_ = 0;
      if (++step_ == sequences_ * tokens_) {
        layer_ = layers - 1;
        --step_;
        return nullptr;
      }
      MOERT_RETURN_IF_ERROR(ReadStep());
    }
    const MoeLayerSpec& spec = header_.model.layers[layer_];
    const int64_t k = spec.routing.top_k;
    const int64_t experts = spec.num_experts;
    call_ = {};
    call_.step = step_;
    call_.phase = Phase::kDecode;
    call_.layer = layer_;
    call_.tokens = 1;
    request_id_ = step_ / tokens_;
    call_.request_ids = absl::MakeConstSpan(&request_id_, 1);
    call_.ids = absl::MakeConstSpan(step_ids_).subspan(layer_ * k, k);
    call_.scores = absl::MakeConstSpan(step_scores_).subspan(layer_ * experts, experts);
    if (layer_ + 1 < layers) {
      call_.next_scores = absl::MakeConstSpan(step_predicted_).subspan(layer_ * experts, experts);
    }
    // Both kinds weight by the softmax over all experts; the second renormalizes over the chosen
    // ones.
    weights_.resize(k);
    float sum = 0;
    for (int64_t j = 0; j < k; ++j) sum += weights_[j] = call_.scores[call_.ids[j]];
    const bool normalize =
        spec.routing.renormalize || spec.routing.kind == RoutingKind::kTopKSoftmax;
    for (float& w : weights_) w *= spec.routing.scaling / (normalize && sum > 0 ? sum : 1.0f);
    call_.weights = weights_;
    return &call_;
  }

 private:
  absl::Status ReadStep() {
    try {
      const int64_t layers = header_.model.num_layers();
      const MoeLayerSpec& spec = header_.model.layers.front();
      const int64_t k = spec.routing.top_k;
      const int64_t experts = spec.num_experts;
      std::vector<std::byte> ids(layers * k);
      MOERT_RETURN_IF_ERROR(file_->ReadBytes(*ids_, step_ * layers * k, absl::MakeSpan(ids)));
      step_ids_.resize(ids.size());
      for (size_t i = 0; i < ids.size(); ++i) {
        step_ids_[i] = std::to_integer<int32_t>(ids[i]);
        bool repeated = false;
        for (size_t j = i / k * k; j < i; ++j) repeated = repeated || step_ids_[j] == step_ids_[i];
        if (step_ids_[i] < experts && !repeated) continue;
        return InvalidArgument("{}: step {}: expert {} {}", file_->path(), step_, step_ids_[i],
                               repeated ? "comes twice" : "does not exist");
      }
      step_scores_.resize(layers * experts);
      MOERT_RETURN_IF_ERROR(
          file_->ReadAsF32(*scores_, step_ * layers * experts, absl::MakeSpan(step_scores_)));
      for (const float s : step_scores_) {
        if (std::isfinite(s)) continue;
        return InvalidArgument("{}: step {}: a score is not finite", file_->path(), step_);
      }
      step_predicted_.resize((layers - 1) * experts);
      return file_->ReadAsF32(*predicted_, step_ * (layers - 1) * experts,
                                             absl::MakeSpan(step_predicted_));
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(file_->path() + ": out of memory");
    }
  }

  const std::unique_ptr<Checkpoint> file_;
  TraceHeader header_;
  const TensorInfo* ids_ = nullptr;
  const TensorInfo* scores_ = nullptr;
  const TensorInfo* predicted_ = nullptr;
  int64_t sequences_ = 0, tokens_ = 0;
  int64_t step_ = -1;
  int layer_ = 0;
  std::vector<int32_t> step_ids_;
  std::vector<float> step_scores_, step_predicted_, weights_;
  int64_t request_id_ = 0;
  TraceCall call_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TraceReader>> OpenRecordedRouting(const std::string& path,
                                                                 const TraceHeader& header) try {
  MOERT_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> file, Checkpoint::Open(path));
  auto reader = std::make_unique<RecordedRouting>(std::move(file), header);
  MOERT_RETURN_IF_ERROR(reader->Open());
  return reader;
} catch (...) {
  return ExceptionStatus("opening a recorded routing");
}

}  // namespace moert
