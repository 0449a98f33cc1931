#include "checkpoint/checkpoint_experts.h"

#include <fmt/format.h>

#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/fmt_absl.h"
#include "base/printable.h"
#include "base/status_macros.h"
#include "quant/packing.h"

namespace moert {

absl::StatusOr<std::unique_ptr<CheckpointExperts>> CheckpointExperts::Create(
    const Checkpoint* checkpoint, const HfConfig* config) {
  std::unique_ptr<CheckpointExperts> experts(new CheckpointExperts(checkpoint, config));
  experts->names_ = config->names;
  const int first = config->moe.layers.front().model_layer;
  for (const MoeTensorNames& other : config->other_names) {
    if (checkpoint->Find(experts->names_.Router(first)) != nullptr) break;
    if (checkpoint->Find(other.Router(first)) != nullptr) experts->names_ = other;
  }
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
  return checkpoint_->CheckWeightType(*t);
}

// Looked for where a layer has no expert of its own: what transformers and MLX write.
absl::StatusOr<ExpertTensors> CheckpointExperts::FindFused(const MoeLayerSpec& l) const {
  const std::string prefix = names_.ExpertsPrefix(l.model_layer);  // "...experts."
  const std::string mlx = absl::StrReplaceAll(prefix, {{".experts.", ".switch_mlp."}});
  const auto find = [&](const char* part) {
    const TensorInfo* t = nullptr;
    for (const std::string& p : {prefix, mlx}) {
      for (const char* suffix : {"", ".weight"}) {
        if (t == nullptr) t = checkpoint_->Find(absl::StrCat(p, part, suffix));
      }
    }
    return t;
  };
  ExpertTensors found;
  found.fused = true;
  found.gate_up = find("gate_up_proj");
  if (found.gate_up == nullptr) {
    found.gate = find("gate_proj");
    found.up = find("up_proj");
  }
  found.down = find("down_proj");
  const bool complete = found.gate_up != nullptr || (found.gate != nullptr && found.up != nullptr);
  if (!complete || found.down == nullptr) {
    return absl::NotFoundError(
        fmt::format("{}: tensor \"{}\" is missing, and so is the one of all experts: "
                    "{}gate_up_proj or {}gate_proj "
                    "with {}up_proj, and {}down_proj",
                    checkpoint_->path(), names_.Expert(l.model_layer, 0, Projection::kGate), prefix,
                    prefix, prefix, prefix));
  }
  const int64_t e = l.num_experts, h = l.hidden, w = l.intermediate;
  const auto is = [](const TensorInfo* t, std::vector<int64_t> shape) {
    return t == nullptr || t->shape == shape;
  };
  // Never both: one of the three pairs of sizes differs from its reverse, unless h == w and gate
  // and up are apart; such tensors are taken as they are multiplied.
  const bool straight = is(found.gate_up, {e, 2 * w, h}) && is(found.gate, {e, w, h}) &&
                        is(found.up, {e, w, h}) && is(found.down, {e, h, w});
  found.transposed = is(found.gate_up, {e, h, 2 * w}) && is(found.gate, {e, h, w}) &&
                     is(found.up, {e, h, w}) && is(found.down, {e, w, h}) && !straight;
  for (const TensorInfo* t : {found.gate_up, found.gate, found.up, found.down}) {
    if (t == nullptr) continue;
    if (!straight && !found.transposed) {
      const std::string& file = checkpoint_->file(t->file).path();
      return absl::InvalidArgumentError(fmt::format(
          "{}: tensor \"{}\": its shape is {}; config.json implies {} experts, hidden size {} and "
          "expert width {}: gate and up [{}, {}, {}] (together [{}, {}, {}]) with down [{}, {}, "
          "{}], or "
          "all with the last two sizes swapped",
          file, Printable(t->name), ShapeToString(t->shape), e, h, w, e, w, h, e, 2 * w, h, e, h,
          w));
    }
    MOERT_RETURN_IF_ERROR(checkpoint_->CheckWeightType(*t));
  }
  return found;
}

// ERNIE's selection bias has a dimension more.
std::vector<int64_t> CheckpointExperts::BiasShape(const MoeLayerSpec& l) const {
  const TensorInfo* t = checkpoint_->Find(names_.SelectionBias(l.model_layer));
  if (t != nullptr && t->shape.size() == 2) return {1, l.num_experts};
  return {l.num_experts};
}

absl::Status CheckpointExperts::CheckLayer(const MoeLayerSpec& l) {
  const MoeTensorNames& names = names_;
  const int n = l.model_layer;
  tensors_.emplace_back();
  if (checkpoint_->Find(names.Expert(n, 0, Projection::kGate)) == nullptr) {
    MOERT_ASSIGN_OR_RETURN(tensors_.back(), FindFused(l));
  }
  for (int e = 0; e < l.num_experts && !tensors_.back().fused; ++e) {
    MOERT_RETURN_IF_ERROR(Check(names.Expert(n, e, Projection::kGate), {l.intermediate, l.hidden}));
    MOERT_RETURN_IF_ERROR(Check(names.Expert(n, e, Projection::kUp), {l.intermediate, l.hidden}));
    MOERT_RETURN_IF_ERROR(Check(names.Expert(n, e, Projection::kDown), {l.hidden, l.intermediate}));
  }
  MOERT_RETURN_IF_ERROR(Check(names.Router(n), {l.num_experts, l.hidden}));
  if (l.routing.selection_bias) {
    MOERT_RETURN_IF_ERROR(Check(names.SelectionBias(n), BiasShape(l)));
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

// [rows, cols] -> [cols, rows]
static void Transpose(absl::Span<const uint16_t> in, int64_t rows, int64_t cols, uint16_t* out) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) out[c * rows + r] = in[static_cast<size_t>(r * cols + c)];
  }
}

absl::Status CheckpointExperts::ReadFused(const ExpertTensors& tensors, const MoeLayerSpec& layer,
                                          int expert, ExpertWeights* out) const {
  std::vector<uint16_t> slab;
  // The expert's part of a tensor as [rows, cols], whichever way it is stored.
  const auto read = [&](const TensorInfo& t, int64_t rows, int64_t cols,
                        std::vector<uint16_t>* matrix) -> absl::Status {
    matrix->resize(static_cast<size_t>(rows * cols));
    const int64_t first = expert * rows * cols;
    if (!tensors.transposed) return checkpoint_->ReadAsBf16(t, first, absl::MakeSpan(*matrix));
    slab.resize(matrix->size());
    MOERT_RETURN_IF_ERROR(checkpoint_->ReadAsBf16(t, first, absl::MakeSpan(slab)));
    Transpose(slab, cols, rows, matrix->data());
    return absl::OkStatus();
  };
  const int64_t h = layer.hidden, w = layer.intermediate;
  if (tensors.gate_up != nullptr) {
    MOERT_RETURN_IF_ERROR(read(*tensors.gate_up, 2 * w, h, &out->gate));
    out->up.assign(out->gate.begin() + w * h, out->gate.end());
    out->gate.resize(static_cast<size_t>(w * h));
  } else {
    MOERT_RETURN_IF_ERROR(read(*tensors.gate, w, h, &out->gate));
    MOERT_RETURN_IF_ERROR(read(*tensors.up, w, h, &out->up));
  }
  return read(*tensors.down, h, w, &out->down);
}

absl::Status CheckpointExperts::ReadExpert(int layer, int expert, ExpertWeights* out) const {
  const MoeLayerSpec& spec = config_->moe.layers[static_cast<size_t>(layer)];
  const ExpertTensors& tensors = tensors_[static_cast<size_t>(layer)];
  if (tensors.fused) return ReadFused(tensors, spec, expert, out);
  const int n = spec.model_layer;
  const MoeTensorNames& names = names_;
  MOERT_RETURN_IF_ERROR(ReadMatrix(names.Expert(n, expert, Projection::kGate), &out->gate));
  MOERT_RETURN_IF_ERROR(ReadMatrix(names.Expert(n, expert, Projection::kUp), &out->up));
  return ReadMatrix(names.Expert(n, expert, Projection::kDown), &out->down);
}

absl::StatusOr<LayerConstants> CheckpointExperts::ReadConstants(int layer) const {
  const MoeLayerSpec& l = config_->moe.layers[static_cast<size_t>(layer)];
  const MoeTensorNames& names = names_;
  const int n = l.model_layer;
  LayerConstants c;
  MOERT_ASSIGN_OR_RETURN(c.gate, checkpoint_->ReadF32(names.Router(n), {l.num_experts, l.hidden}));
  if (l.routing.selection_bias) {
    MOERT_ASSIGN_OR_RETURN(c.selection_bias,
                           checkpoint_->ReadF32(names.SelectionBias(n), BiasShape(l)));
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
