#include "format/checkpoint_experts.h"

#include <fmt/format.h>

#include <cstring>
#include <new>

#include "base/fmt_absl.h"
#include "base/status_macros.h"
#include "quant/packing.h"

namespace moert {

absl::StatusOr<std::unique_ptr<CheckpointExperts>> CheckpointExperts::Create(
    const Checkpoint* checkpoint, const HfConfig* config) {
  std::unique_ptr<CheckpointExperts> experts(new CheckpointExperts(checkpoint, config));
  for (const MoeLayerSpec& layer : config->moe.layers) {
    MOERT_RETURN_IF_ERROR(experts->CheckLayer(layer));
  }
  return experts;
}

absl::Status CheckpointExperts::Check(const std::string& name,
                                      absl::Span<const int64_t> shape) const {
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* t, checkpoint_->Get(name));
  const std::string& file = checkpoint_->file(t->file).path();
  if (absl::MakeConstSpan(t->shape) != shape) {
    return absl::InvalidArgumentError(
        fmt::format("{}: tensor \"{}\": its shape is {}, config.json implies {}", file, name,
                    ShapeToString(t->shape), ShapeToString(shape)));
  }
  if (t->dtype != DType::kBF16 && t->dtype != DType::kF16 && t->dtype != DType::kF32) {
    return absl::InvalidArgumentError(
        fmt::format("{}: tensor \"{}\": its type is {}, legal are bf16, f16, f32", file, name,
                    DTypeName(t->dtype)));
  }
  return absl::OkStatus();
}

absl::Status CheckpointExperts::CheckLayer(const MoeLayerSpec& l) const {
  const MoeTensorNames& names = config_->names;
  const int n = l.model_layer;
  for (int e = 0; e < l.num_experts; ++e) {
    MOERT_RETURN_IF_ERROR(Check(names.Expert(n, e, Projection::kGate), {l.intermediate, l.hidden}));
    MOERT_RETURN_IF_ERROR(Check(names.Expert(n, e, Projection::kUp), {l.intermediate, l.hidden}));
    MOERT_RETURN_IF_ERROR(Check(names.Expert(n, e, Projection::kDown), {l.hidden, l.intermediate}));
  }
  MOERT_RETURN_IF_ERROR(Check(names.Router(n), {l.num_experts, l.hidden}));
  if (l.routing.selection_bias) {
    MOERT_RETURN_IF_ERROR(Check(names.SelectionBias(n), {l.num_experts}));
  }
  if (l.shared_intermediate > 0) {
    const int64_t w = l.shared_intermediate;
    MOERT_RETURN_IF_ERROR(Check(names.SharedExpert(n, Projection::kGate), {w, l.hidden}));
    MOERT_RETURN_IF_ERROR(Check(names.SharedExpert(n, Projection::kUp), {w, l.hidden}));
    MOERT_RETURN_IF_ERROR(Check(names.SharedExpert(n, Projection::kDown), {l.hidden, w}));
  }
  if (l.shared_gate) MOERT_RETURN_IF_ERROR(Check(names.SharedGate(n), {1, l.hidden}));
  return absl::OkStatus();
}

absl::Status CheckpointExperts::ReadMatrix(const std::string& name,
                                           std::vector<uint16_t>* out) const {
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* t, checkpoint_->Get(name));
  out->resize(static_cast<size_t>(t->elements()));
  return checkpoint_->ReadAsBf16(*t, 0, absl::MakeSpan(*out));
}

absl::Status CheckpointExperts::ReadExpert(int layer, int expert, ExpertWeights* out) const {
  const int n = config_->moe.layers[static_cast<size_t>(layer)].model_layer;
  const MoeTensorNames& names = config_->names;
  MOERT_RETURN_IF_ERROR(ReadMatrix(names.Expert(n, expert, Projection::kGate), &out->gate));
  MOERT_RETURN_IF_ERROR(ReadMatrix(names.Expert(n, expert, Projection::kUp), &out->up));
  return ReadMatrix(names.Expert(n, expert, Projection::kDown), &out->down);
}

absl::StatusOr<LayerConstants> CheckpointExperts::ReadConstants(int layer) const {
  const MoeLayerSpec& l = config_->moe.layers[static_cast<size_t>(layer)];
  const MoeTensorNames& names = config_->names;
  const int n = l.model_layer;
  LayerConstants c;
  MOERT_ASSIGN_OR_RETURN(c.gate, checkpoint_->ReadF32(names.Router(n), {l.num_experts, l.hidden}));
  if (l.routing.selection_bias) {
    MOERT_ASSIGN_OR_RETURN(c.selection_bias,
                           checkpoint_->ReadF32(names.SelectionBias(n), {l.num_experts}));
  }
  if (l.shared_gate) {
    MOERT_ASSIGN_OR_RETURN(c.shared_gate, checkpoint_->ReadF32(names.SharedGate(n), {1, l.hidden}));
  }
  if (l.shared_intermediate > 0) {
    ExpertWeights shared;
    MOERT_RETURN_IF_ERROR(ReadMatrix(names.SharedExpert(n, Projection::kGate), &shared.gate));
    MOERT_RETURN_IF_ERROR(ReadMatrix(names.SharedExpert(n, Projection::kUp), &shared.up));
    MOERT_RETURN_IF_ERROR(ReadMatrix(names.SharedExpert(n, Projection::kDown), &shared.down));
    MOERT_ASSIGN_OR_RETURN(c.shared_layout, MakeRecordLayout(l.hidden, l.shared_intermediate,
                                                             ExpertFormat::Uniform(Scheme{})));
    c.shared_expert.resize(static_cast<size_t>(c.shared_layout.bytes));
    MOERT_RETURN_IF_ERROR(PackExpertBf16(c.shared_layout, shared, c.shared_expert.data()));
  }
  return c;
}

absl::Status PackExpertBf16(const RecordLayout& layout, const ExpertWeights& weights,
                            std::byte* record) {
  std::memset(record, 0, static_cast<size_t>(layout.bytes));
  MOERT_RETURN_IF_ERROR(PackMatrixBf16(layout.gate, weights.gate, record));
  MOERT_RETURN_IF_ERROR(PackMatrixBf16(layout.up, weights.up, record));
  return PackMatrixBf16(layout.down, weights.down, record);
}

}  // namespace moert
