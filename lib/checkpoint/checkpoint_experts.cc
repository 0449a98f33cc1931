#include "checkpoint/checkpoint_experts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/bf16.h"
#include "base/status_macros.h"

namespace moert {
// ERNIE's selection bias has an additional dimension.
std::vector<int64_t> CheckpointExperts::BiasShape(const MoeLayerSpec& l) const {
  const TensorInfo* t = checkpoint_->Find(names_.SelectionBias(l.model_layer));
  if (t != nullptr && t->shape.size() == 2) return {1, l.num_experts};
  return {l.num_experts};
}

StoredMatrix CheckpointExperts::Stored(const MoeLayerSpec& l, int expert, Projection p,
                                       bool blocks) const {
  const bool down = p == Projection::kDown;
  StoredMatrix m;
  m.rows = down ? l.hidden : l.intermediate;
  m.k = down ? l.intermediate : l.hidden;
  if (!blocks) {
    m.base = WeightBase(names_.Expert(l.model_layer, expert, p));
    return m;
  }
  m.base = absl::StrCat(names_.ExpertsPrefix(l.model_layer), down ? "down_proj" : "gate_up_proj");
  m.experts = l.num_experts;
  m.expert = expert;
  m.stored_rows = down ? m.rows : 2 * m.rows;
  m.row_step = down || !names_.interleaved ? 1 : 2;
  if (p == Projection::kUp) m.first_row = names_.interleaved ? 1 : l.intermediate;
  return m;
}

absl::Status CheckpointExperts::ReadMatrix(const std::string& name, int64_t rows, int64_t k,
                                           std::vector<uint16_t>* out) const {
  if (const std::string base = WeightBase(name); quantized_.Has(base)) {
    const StoredMatrix m = {base, rows, k};
    MOERT_ASSIGN_OR_RETURN(const Scheme scheme, quantized_.SchemeOf(m));
    MOERT_ASSIGN_OR_RETURN(const QuantizedMatrix codes, quantized_.Read(m, ChannelOrder::kAny));
    const std::vector<float> wide = Dequantize(scheme, codes);
    out->resize(wide.size());
    for (size_t i = 0; i < wide.size(); ++i) (*out)[i] = F32ToBf16(wide[i]);
    return absl::OkStatus();
  }
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* t, checkpoint_->Get(name));
  out->resize(t->elements());
  return checkpoint_->ReadAsBf16(*t, 0, absl::MakeSpan(*out));
}

// Separates the rows of gate and up, which are stored one after the other or alternately.
static void SplitRows(const std::vector<uint16_t>& both, int64_t rows, int64_t cols,
                      bool interleaved, std::vector<uint16_t>* gate, std::vector<uint16_t>* up) {
  gate->resize(rows * cols);
  up->resize(gate->size());
  const int64_t step = interleaved ? 2 : 1, second = interleaved ? 1 : rows;
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(both.begin() + r * step * cols, cols, gate->begin() + r * cols);
    std::copy_n(both.begin() + (r * step + second) * cols, cols, up->begin() + r * cols);
  }
}

absl::Status CheckpointExperts::ReadProjection(int layer, int expert, Projection p,
                                               std::vector<uint16_t>* out) const {
  const MoeLayerSpec& spec = config_->moe.layers[layer];
  const ExpertTensors& tensors = tensors_[layer];
  out->clear();
  if (p == Projection::kGate && !spec.activation.gated) return absl::OkStatus();
  if (tensors.blocks) {
    std::vector<float> wide;
    MOERT_RETURN_IF_ERROR(ReadWidened(layer, expert, p, &wide));
    out->resize(wide.size());
    for (size_t i = 0; i < wide.size(); ++i) (*out)[i] = F32ToBf16(wide[i]);
    return absl::OkStatus();
  }
  const StoredMatrix m = Stored(spec, expert, p, /*blocks=*/false);
  if (!tensors.fused) {
    return ReadMatrix(names_.Expert(spec.model_layer, expert, p), m.rows, m.k, out);
  }
  MOERT_ASSIGN_OR_RETURN(const StoredFloats from, FloatsOf(layer, expert, p));
  return ReadFloats(from, m.rows, m.k, out);
}

absl::Status CheckpointExperts::ReadExpert(int layer, int expert, ExpertWeights* out) const {
  MOERT_RETURN_IF_ERROR(ReadProjection(layer, expert, Projection::kGate, &out->gate));
  MOERT_RETURN_IF_ERROR(ReadProjection(layer, expert, Projection::kUp, &out->up));
  return ReadProjection(layer, expert, Projection::kDown, &out->down);
}

absl::Status CheckpointExperts::ReadWidened(int layer, int expert, Projection p,
                                            std::vector<float>* out) const {
  const MoeLayerSpec& spec = config_->moe.layers[layer];
  const ExpertTensors& tensors = tensors_[layer];
  const ExpertFormat& format = stored(layer, expert);
  const Scheme& scheme = OfProjection(p, format.gate, format.up, format.down);
  if (!scheme.is_bf16()) {
    MOERT_ASSIGN_OR_RETURN(
        const QuantizedMatrix codes,
        quantized_.Read(Stored(spec, expert, p, tensors.blocks), ChannelOrder::kAny));
    *out = Dequantize(scheme, codes);
    return absl::OkStatus();
  }
  // Floats are bf16 in the file, or are converted.
  std::vector<uint16_t> matrix;
  MOERT_RETURN_IF_ERROR(ReadProjection(layer, expert, p, &matrix));
  out->resize(matrix.size());
  Bf16ToF32(matrix.data(), static_cast<int64_t>(matrix.size()), out->data());
  return absl::OkStatus();
}

absl::Status CheckpointExperts::ReadShared(const MoeLayerSpec& l, ExpertWeights* out) const {
  const int n = l.model_layer;
  const int64_t w = l.shared_intermediate;
  if (!names_.shared_gate_up.empty()) {
    std::vector<uint16_t> both;
    MOERT_RETURN_IF_ERROR(
        ReadMatrix(MoeTensorNames::InLayer(names_.shared_gate_up, n), 2 * w, l.hidden, &both));
    SplitRows(both, w, l.hidden, /*interleaved=*/false, &out->gate, &out->up);
  } else {
    if (l.activation.gated) {
      MOERT_RETURN_IF_ERROR(
          ReadMatrix(names_.SharedExpert(n, Projection::kGate), w, l.hidden, &out->gate));
    }
    MOERT_RETURN_IF_ERROR(
        ReadMatrix(names_.SharedExpert(n, Projection::kUp), w, l.hidden, &out->up));
  }
  return ReadMatrix(names_.SharedExpert(n, Projection::kDown), l.hidden, w, &out->down);
}

absl::StatusOr<LayerConstants> CheckpointExperts::ReadConstants(int layer) const {
  const MoeLayerSpec& l = config_->moe.layers[layer];
  const MoeTensorNames& names = names_;
  const int n = l.model_layer;
  LayerConstants c;
  if (!l.routing.external()) {
    MOERT_ASSIGN_OR_RETURN(c.gate,
                           checkpoint_->ReadF32(names.Router(n), {l.num_experts, l.hidden}));
  }
  if (l.routing.selection_bias) {
    MOERT_ASSIGN_OR_RETURN(c.selection_bias,
                           checkpoint_->ReadF32(names.SelectionBias(n), BiasShape(l)));
  }
  if (l.routing.logit_bias) {
    MOERT_ASSIGN_OR_RETURN(c.logit_bias,
                           checkpoint_->ReadF32(names.RouterBias(n), {l.num_experts}));
  }
  if (l.routing.expert_scales) {
    MOERT_ASSIGN_OR_RETURN(c.expert_scales,
                           checkpoint_->ReadF32(names.ExpertScales(n), {l.num_experts}));
  }
  if (l.routing.hash_vocab > 0) {
    MOERT_ASSIGN_OR_RETURN(
        c.hash_experts,
        checkpoint_->ReadI32(names.HashExperts(n), {l.routing.hash_vocab, l.routing.top_k}));
  }
  if (l.shared_gate) {
    MOERT_ASSIGN_OR_RETURN(c.shared_gate, checkpoint_->ReadF32(names.SharedGate(n), {1, l.hidden}));
  }
  if (l.shared_intermediate > 0) {
    ExpertWeights shared;
    MOERT_RETURN_IF_ERROR(ReadShared(l, &shared));
    MOERT_ASSIGN_OR_RETURN(c.shared_layout, SharedRecordLayout(l));
    c.shared_expert.resize(c.shared_layout.bytes);
    MOERT_RETURN_IF_ERROR(PackExpertBf16(c.shared_layout, shared, c.shared_expert.data()));
  }
  return c;
}

}  // namespace moert
