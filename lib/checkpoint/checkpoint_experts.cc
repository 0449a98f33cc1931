#include "checkpoint/checkpoint_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/bf16.h"
#include "base/fmt_absl.h"
#include "base/printable.h"
#include "base/status_macros.h"
#include "quant/packing.h"

namespace moert {
namespace {

// A linear layer's name without its weight's.
std::string BaseOf(const std::string& weight) {
  return std::string(absl::StripSuffix(weight, ".weight"));
}

// Schemes of the library's own have bf16 scales; imported ones are checked as they are packed.
absl::Status CheckScales(const MatrixLayout& layout, const QuantizedMatrix& q) {
  for (const float scale : q.scales) {
    if (layout.scheme.imported() || RoundToBf16(scale) == scale) continue;
    return absl::InvalidArgumentError(
        fmt::format("the scale {} is no bf16 number, as those of {} are; open the checkpoint "
                    "widened to bf16, or quantize it to another scheme",
                    scale, layout.scheme.Name()));
  }
  return absl::OkStatus();
}

}  // namespace

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

StoredMatrix CheckpointExperts::Stored(const MoeLayerSpec& l, int expert, Projection p,
                                       bool blocks) const {
  const bool down = p == Projection::kDown;
  StoredMatrix m;
  m.rows = down ? l.hidden : l.intermediate;
  m.k = down ? l.intermediate : l.hidden;
  if (!blocks) {
    m.base = BaseOf(names_.Expert(l.model_layer, expert, p));
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

bool CheckpointExperts::IsQuantized(int layer) const {
  return !(stored(layer) == ExpertFormat::Uniform(Scheme{}));
}

absl::Status CheckpointExperts::CheckExperts(const MoeLayerSpec& l) {
  const int n = l.model_layer;
  tensors_.emplace_back();
  stored_.push_back(ExpertFormat::Uniform(Scheme{}));
  const std::string prefix = names_.ExpertsPrefix(n);
  if (config_->quantization.form == StoredWeights::kMxfp4) {
    tensors_.back().blocks = quantized_.Has(prefix + "gate_up_proj");
    tensors_.back().fused = tensors_.back().blocks;
  }
  const bool blocks = tensors_.back().blocks;
  const Projection first = l.activation.gated ? Projection::kGate : Projection::kUp;
  const bool quantized = blocks || quantized_.Has(BaseOf(names_.Expert(n, 0, first)));
  if (!quantized && checkpoint_->Find(names_.Expert(n, 0, first)) == nullptr) {
    if (!l.activation.gated) return checkpoint_->Get(names_.Expert(n, 0, first)).status();
    MOERT_ASSIGN_OR_RETURN(tensors_.back(), FindFused(l));
    return absl::OkStatus();
  }
  Scheme* const schemes[] = {&stored_.back().gate, &stored_.back().up, &stored_.back().down};
  for (int e = 0; e < l.num_experts; ++e) {
    for (const Projection p : {Projection::kGate, Projection::kUp, Projection::kDown}) {
      if (p == Projection::kGate && !l.activation.gated) continue;
      const StoredMatrix m = Stored(l, e, p, blocks);
      if (!quantized) {
        MOERT_RETURN_IF_ERROR(Check(names_.Expert(n, e, p), {m.rows, m.k}));
        continue;
      }
      MOERT_ASSIGN_OR_RETURN(const Scheme scheme, quantized_.SchemeOf(m));
      Scheme& of_layer = *schemes[static_cast<int>(p)];
      if (e == 0) of_layer = scheme;
      if (of_layer == scheme) continue;
      return absl::InvalidArgumentError(
          fmt::format("{}: {}: its scheme is {}, that of the layer's first expert {}",
                      checkpoint_->path(), Printable(m.base), scheme.Name(), of_layer.Name()));
    }
    if (blocks) break;  // all experts are in the same tensors
  }
  if (!l.activation.gated) stored_.back().gate = stored_.back().up;
  return absl::OkStatus();
}

absl::Status CheckpointExperts::CheckBiases(const MoeLayerSpec& l) const {
  const int n = l.model_layer;
  const std::string prefix = names_.ExpertsPrefix(n);
  if (tensors_.back().fused) {
    MOERT_RETURN_IF_ERROR(Check(prefix + "gate_up_proj_bias", {l.num_experts, 2 * l.intermediate}));
    return Check(prefix + "down_proj_bias", {l.num_experts, l.hidden});
  }
  for (int e = 0; e < l.num_experts; ++e) {
    for (const Projection p : {Projection::kGate, Projection::kUp, Projection::kDown}) {
      if (p == Projection::kGate && !l.activation.gated) continue;
      const int64_t rows = p == Projection::kDown ? l.hidden : l.intermediate;
      MOERT_RETURN_IF_ERROR(Check(BaseOf(names_.Expert(n, e, p)) + ".bias", {rows}));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointExperts::CheckLayer(const MoeLayerSpec& l) {
  const MoeTensorNames& names = names_;
  const int n = l.model_layer;
  MOERT_RETURN_IF_ERROR(CheckExperts(l));
  if (l.expert_bias) MOERT_RETURN_IF_ERROR(CheckBiases(l));
  MOERT_RETURN_IF_ERROR(Check(names.Router(n), {l.num_experts, l.hidden}));
  if (l.routing.logit_bias) MOERT_RETURN_IF_ERROR(Check(names.RouterBias(n), {l.num_experts}));
  if (l.routing.expert_scales) {
    MOERT_RETURN_IF_ERROR(Check(names.ExpertScales(n), {l.num_experts}));
  }
  if (l.routing.selection_bias) {
    MOERT_RETURN_IF_ERROR(Check(names.SelectionBias(n), BiasShape(l)));
  }
  if (l.shared_intermediate > 0) {
    const int64_t w = l.shared_intermediate;
    for (const Projection p : {Projection::kGate, Projection::kUp, Projection::kDown}) {
      if (p == Projection::kGate && !l.activation.gated) continue;
      const bool down = p == Projection::kDown;
      const StoredMatrix m = {BaseOf(names.SharedExpert(n, p)), down ? l.hidden : w,
                              down ? w : l.hidden};
      MOERT_RETURN_IF_ERROR(quantized_.Has(m.base)
                                ? quantized_.SchemeOf(m).status()
                                : Check(names.SharedExpert(n, p), {m.rows, m.k}));
    }
  }
  if (l.shared_gate) MOERT_RETURN_IF_ERROR(Check(names.SharedGate(n), {1, l.hidden}));
  return absl::OkStatus();
}

absl::Status CheckpointExperts::ReadMatrix(const std::string& name, int64_t rows, int64_t k,
                                           std::vector<uint16_t>* out) const {
  if (const std::string base = BaseOf(name); quantized_.Has(base)) {
    const StoredMatrix m = {base, rows, k};
    MOERT_ASSIGN_OR_RETURN(const Scheme scheme, quantized_.SchemeOf(m));
    MOERT_ASSIGN_OR_RETURN(const QuantizedMatrix codes, quantized_.Read(m));
    const std::vector<float> wide = Dequantize(scheme, codes);
    out->resize(wide.size());
    for (size_t i = 0; i < wide.size(); ++i) (*out)[i] = F32ToBf16(wide[i]);
    return absl::OkStatus();
  }
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* t, checkpoint_->Get(name));
  out->resize(static_cast<size_t>(t->elements()));
  return checkpoint_->ReadAsBf16(*t, 0, absl::MakeSpan(*out));
}

// Rows of gate and of up, stored one behind the other or in turns.
static void SplitRows(const std::vector<uint16_t>& both, int64_t rows, int64_t cols,
                      bool interleaved, std::vector<uint16_t>* gate, std::vector<uint16_t>* up) {
  gate->resize(static_cast<size_t>(rows * cols));
  up->resize(gate->size());
  const int64_t step = interleaved ? 2 : 1, second = interleaved ? 1 : rows;
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(both.begin() + r * step * cols, cols, gate->begin() + r * cols);
    std::copy_n(both.begin() + (r * step + second) * cols, cols, up->begin() + r * cols);
  }
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
    std::vector<uint16_t> both;
    MOERT_RETURN_IF_ERROR(read(*tensors.gate_up, 2 * w, h, &both));
    SplitRows(both, w, h, names_.interleaved, &out->gate, &out->up);
  } else {
    MOERT_RETURN_IF_ERROR(read(*tensors.gate, w, h, &out->gate));
    MOERT_RETURN_IF_ERROR(read(*tensors.up, w, h, &out->up));
  }
  return read(*tensors.down, h, w, &out->down);
}

absl::Status CheckpointExperts::ReadExpert(int layer, int expert, ExpertWeights* out) const {
  const MoeLayerSpec& spec = config_->moe.layers[static_cast<size_t>(layer)];
  const ExpertTensors& tensors = tensors_[static_cast<size_t>(layer)];
  if (tensors.fused && !tensors.blocks) return ReadFused(tensors, spec, expert, out);
  std::vector<uint16_t>* const to[] = {&out->gate, &out->up, &out->down};
  std::vector<float> wide;
  for (const Projection p : {Projection::kGate, Projection::kUp, Projection::kDown}) {
    std::vector<uint16_t>& matrix = *to[static_cast<int>(p)];
    matrix.clear();
    if (p == Projection::kGate && !spec.activation.gated) continue;
    if (!tensors.blocks) {
      const StoredMatrix m = Stored(spec, expert, p, /*blocks=*/false);
      MOERT_RETURN_IF_ERROR(
          ReadMatrix(names_.Expert(spec.model_layer, expert, p), m.rows, m.k, &matrix));
      continue;
    }
    MOERT_RETURN_IF_ERROR(ReadWidened(layer, expert, p, &wide));
    matrix.resize(wide.size());
    for (size_t i = 0; i < wide.size(); ++i) matrix[i] = F32ToBf16(wide[i]);
  }
  return absl::OkStatus();
}

absl::Status CheckpointExperts::ReadWidened(int layer, int expert, Projection p,
                                            std::vector<float>* out) const {
  const MoeLayerSpec& spec = config_->moe.layers[static_cast<size_t>(layer)];
  const ExpertTensors& tensors = tensors_[static_cast<size_t>(layer)];
  if (IsQuantized(layer)) {
    const StoredMatrix m = Stored(spec, expert, p, tensors.blocks);
    const ExpertFormat& format = stored(layer);
    const Scheme& scheme = p == Projection::kGate ? format.gate
                           : p == Projection::kUp ? format.up
                                                  : format.down;
    MOERT_ASSIGN_OR_RETURN(const QuantizedMatrix codes, quantized_.Read(m));
    *out = Dequantize(scheme, codes);
    return absl::OkStatus();
  }
  // Floats have been bf16 since they were published, or become it.
  ExpertWeights weights;
  MOERT_RETURN_IF_ERROR(ReadExpert(layer, expert, &weights));
  const std::vector<uint16_t>& matrix = p == Projection::kGate ? weights.gate
                                        : p == Projection::kUp ? weights.up
                                                               : weights.down;
  out->resize(matrix.size());
  for (size_t i = 0; i < matrix.size(); ++i) (*out)[i] = Bf16ToF32(matrix[i]);
  return absl::OkStatus();
}

absl::Status CheckpointExperts::ReadBias(const MoeLayerSpec& l, int expert, Projection p,
                                         std::vector<float>* out) const {
  const bool down = p == Projection::kDown;
  const int64_t rows = down ? l.hidden : l.intermediate;
  out->resize(static_cast<size_t>(rows));
  if (!tensors_[static_cast<size_t>(config_->MoeLayerIndex(l.model_layer))].fused) {
    MOERT_ASSIGN_OR_RETURN(
        *out,
        checkpoint_->ReadF32(BaseOf(names_.Expert(l.model_layer, expert, p)) + ".bias", {rows}));
    return absl::OkStatus();
  }
  const std::string prefix = names_.ExpertsPrefix(l.model_layer);
  const int64_t width = down ? rows : 2 * rows;
  MOERT_ASSIGN_OR_RETURN(
      const TensorInfo* t,
      checkpoint_->Get(prefix + (down ? "down_proj_bias" : "gate_up_proj_bias")));
  std::vector<float> all(static_cast<size_t>(width));
  MOERT_RETURN_IF_ERROR(checkpoint_->ReadAsF32(*t, expert * width, absl::MakeSpan(all)));
  const int64_t step = !down && names_.interleaved ? 2 : 1;
  const int64_t first = p != Projection::kUp ? 0 : names_.interleaved ? 1 : rows;
  for (int64_t r = 0; r < rows; ++r) {
    (*out)[static_cast<size_t>(r)] = all[static_cast<size_t>(first + r * step)];
  }
  return absl::OkStatus();
}

absl::Status CheckpointExperts::ReadBiases(int layer, int expert, const RecordLayout& layout,
                                           std::byte* record) const {
  if (!layout.parts.biases) return absl::OkStatus();
  const MoeLayerSpec& spec = config_->moe.layers[static_cast<size_t>(layer)];
  std::vector<float> bias;
  for (const auto& [p, matrix] :
       {std::pair(Projection::kGate, &layout.gate), std::pair(Projection::kUp, &layout.up),
        std::pair(Projection::kDown, &layout.down)}) {
    if (p == Projection::kGate && !layout.parts.gate) continue;
    MOERT_RETURN_IF_ERROR(ReadBias(spec, expert, p, &bias));
    std::memcpy(record + matrix->bias_offset, bias.data(), bias.size() * sizeof(float));
  }
  return absl::OkStatus();
}

absl::Status CheckpointExperts::ReadRecord(int layer, int expert, const RecordLayout& layout,
                                           std::byte* record) const {
  const MoeLayerSpec& spec = config_->moe.layers[static_cast<size_t>(layer)];
  if (layout.format == ExpertFormat::Uniform(Scheme{})) {
    ExpertWeights weights;
    MOERT_RETURN_IF_ERROR(ReadExpert(layer, expert, &weights));
    MOERT_RETURN_IF_ERROR(PackExpertBf16(layout, weights, record));
    return ReadBiases(layer, expert, layout, record);
  }
  if (!(layout.format == stored(layer))) {
    return absl::InvalidArgumentError(
        fmt::format("{}: layer {} is stored in {}, not in {}", checkpoint_->path(), layer,
                    stored(layer).up.Name(), layout.format.up.Name()));
  }
  std::memset(record, 0, static_cast<size_t>(layout.bytes));
  for (const auto& [p, matrix] :
       {std::pair(Projection::kGate, &layout.gate), std::pair(Projection::kUp, &layout.up),
        std::pair(Projection::kDown, &layout.down)}) {
    if (p == Projection::kGate && !layout.parts.gate) continue;
    const StoredMatrix m = Stored(spec, expert, p, tensors_[static_cast<size_t>(layer)].blocks);
    MOERT_ASSIGN_OR_RETURN(const QuantizedMatrix codes, quantized_.Read(m));
    absl::Status status = CheckScales(*matrix, codes);
    if (status.ok()) status = PackMatrix(*matrix, codes, record);
    if (status.ok()) continue;
    return absl::Status(status.code(), fmt::format("{}: {}: {}", checkpoint_->path(),
                                                   Printable(m.base), status.message()));
  }
  return ReadBiases(layer, expert, layout, record);
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
    const int64_t w = l.shared_intermediate;
    if (l.activation.gated) {
      MOERT_RETURN_IF_ERROR(
          ReadMatrix(names.SharedExpert(n, Projection::kGate), w, l.hidden, &shared.gate));
    }
    MOERT_RETURN_IF_ERROR(
        ReadMatrix(names.SharedExpert(n, Projection::kUp), w, l.hidden, &shared.up));
    MOERT_RETURN_IF_ERROR(
        ReadMatrix(names.SharedExpert(n, Projection::kDown), l.hidden, w, &shared.down));
    MOERT_ASSIGN_OR_RETURN(c.shared_layout, SharedRecordLayout(l));
    c.shared_expert.resize(static_cast<size_t>(c.shared_layout.bytes));
    MOERT_RETURN_IF_ERROR(PackExpertBf16(c.shared_layout, shared, c.shared_expert.data()));
  }
  return c;
}

absl::Status PackExpertBf16(const RecordLayout& layout, const ExpertWeights& weights,
                            std::byte* record) {
  std::memset(record, 0, static_cast<size_t>(layout.bytes));
  if (layout.parts.gate) {
    MOERT_RETURN_IF_ERROR(PackMatrixBf16(layout.gate, weights.gate, record));
  }
  MOERT_RETURN_IF_ERROR(PackMatrixBf16(layout.up, weights.up, record));
  return PackMatrixBf16(layout.down, weights.down, record);
}

}  // namespace moert
