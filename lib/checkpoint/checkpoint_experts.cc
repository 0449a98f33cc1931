#include "checkpoint/checkpoint_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/bf16.h"
#include "base/errors.h"
#include "base/fmt_absl.h"
#include "base/printable.h"
#include "base/status_macros.h"
#include "quant/packing.h"

namespace moert {
namespace {

// Schemes of the library's own have bf16 scales; imported ones are checked as they are packed.
absl::Status CheckScales(const MatrixLayout& layout, const QuantizedMatrix& q) {
  for (const float scale : q.scales) {
    if (layout.scheme.imported() || RoundToBf16(scale) == scale) continue;
    return InvalidArgument(
        "the scale {} is no bf16 number, as those of {} are; open the checkpoint widened to bf16, "
        "or quantize it to another scheme",
        scale, layout.scheme.Name());
  }
  return absl::OkStatus();
}

}  // namespace

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

// Rows of gate and of up, stored one behind the other or in turns.
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

// [rows, cols] -> [cols, rows]
static void Transpose(absl::Span<const uint16_t> in, int64_t rows, int64_t cols, uint16_t* out) {
  constexpr int64_t kBlock = 32;  // in both directions, for the caches
  for (int64_t r0 = 0; r0 < rows; r0 += kBlock) {
    const int64_t r1 = std::min(rows, r0 + kBlock);
    for (int64_t c0 = 0; c0 < cols; c0 += kBlock) {
      const int64_t c1 = std::min(cols, c0 + kBlock);
      for (int64_t c = c0; c < c1; ++c) {
        for (int64_t r = r0; r < r1; ++r) out[c * rows + r] = in[r * cols + c];
      }
    }
  }
}

absl::Status CheckpointExperts::ReadFused(const ExpertTensors& tensors, const MoeLayerSpec& layer,
                                          int expert, ExpertWeights* out) const {
  std::vector<uint16_t> slab;
  // The expert's part of a tensor as [rows, cols], whichever way it is stored.
  const auto read = [&](const TensorInfo& t, bool transposed, int64_t rows, int64_t cols,
                        std::vector<uint16_t>* matrix) -> absl::Status {
    matrix->resize(rows * cols);
    const int64_t first = expert * rows * cols;
    if (!transposed) return checkpoint_->ReadAsBf16(t, first, absl::MakeSpan(*matrix));
    slab.resize(matrix->size());
    MOERT_RETURN_IF_ERROR(checkpoint_->ReadAsBf16(t, first, absl::MakeSpan(slab)));
    Transpose(slab, cols, rows, matrix->data());
    return absl::OkStatus();
  };
  const int64_t h = layer.hidden, w = layer.intermediate;
  if (tensors.gate_up != nullptr) {
    std::vector<uint16_t> both;
    MOERT_RETURN_IF_ERROR(read(*tensors.gate_up, tensors.transposed, 2 * w, h, &both));
    SplitRows(both, w, h, names_.interleaved, &out->gate, &out->up);
  } else {
    out->gate.clear();
    if (tensors.gate != nullptr) {
      MOERT_RETURN_IF_ERROR(read(*tensors.gate, tensors.transposed, w, h, &out->gate));
    }
    MOERT_RETURN_IF_ERROR(read(*tensors.up, tensors.transposed, w, h, &out->up));
  }
  return read(*tensors.down, tensors.down_transposed, h, w, &out->down);
}

absl::Status CheckpointExperts::ReadExpert(int layer, int expert, ExpertWeights* out) const {
  const MoeLayerSpec& spec = config_->moe.layers[layer];
  const ExpertTensors& tensors = tensors_[layer];
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
  const MoeLayerSpec& spec = config_->moe.layers[layer];
  const ExpertTensors& tensors = tensors_[layer];
  const ExpertFormat& format = stored(layer, expert);
  const Scheme& scheme = p == Projection::kGate ? format.gate
                         : p == Projection::kUp ? format.up
                                                : format.down;
  if (!scheme.is_bf16()) {
    MOERT_ASSIGN_OR_RETURN(
        const QuantizedMatrix codes,
        quantized_.Read(Stored(spec, expert, p, tensors.blocks), ChannelOrder::kAny));
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
  Bf16ToF32(matrix.data(), static_cast<int64_t>(matrix.size()), out->data());
  return absl::OkStatus();
}

absl::Status CheckpointExperts::ReadBias(const MoeLayerSpec& l, int expert, Projection p,
                                         std::vector<float>* out) const {
  const bool down = p == Projection::kDown;
  const int64_t rows = down ? l.hidden : l.intermediate;
  out->resize(rows);
  if (!tensors_[config_->MoeLayerIndex(l.model_layer)].fused) {
    MOERT_ASSIGN_OR_RETURN(
        *out, checkpoint_->ReadF32(WeightBase(names_.Expert(l.model_layer, expert, p)) + ".bias",
                                   {rows}));
    return absl::OkStatus();
  }
  const std::string prefix = names_.ExpertsPrefix(l.model_layer);
  const int64_t width = down ? rows : 2 * rows;
  MOERT_ASSIGN_OR_RETURN(
      const TensorInfo* t,
      checkpoint_->Get(prefix + (down ? "down_proj_bias" : "gate_up_proj_bias")));
  std::vector<float> all(width);
  MOERT_RETURN_IF_ERROR(checkpoint_->ReadAsF32(*t, expert * width, absl::MakeSpan(all)));
  const int64_t step = !down && names_.interleaved ? 2 : 1;
  const int64_t first = p != Projection::kUp ? 0 : names_.interleaved ? 1 : rows;
  for (int64_t r = 0; r < rows; ++r) (*out)[r] = all[first + r * step];
  return absl::OkStatus();
}

absl::Status CheckpointExperts::ReadBiases(int layer, int expert, const RecordLayout& layout,
                                           std::byte* record) const {
  const MoeLayerSpec& spec = config_->moe.layers[layer];
  if (layout.contents != RecordContents{spec.activation.gated, spec.expert_bias}) {
    return InvalidArgument(
        "{}: layer {}: a record that is to hold an expert has to be laid out by "
        "ExpertRecordLayout: gate {}, biases {}; this one: gate {}, biases {}",
        checkpoint_->path(), layer, spec.activation.gated, spec.expert_bias, layout.contents.gate,
        layout.contents.biases);
  }
  if (!spec.expert_bias) return absl::OkStatus();
  std::vector<float> bias;
  for (const auto& [p, matrix] :
       {std::pair(Projection::kGate, &layout.gate), std::pair(Projection::kUp, &layout.up),
        std::pair(Projection::kDown, &layout.down)}) {
    if (p == Projection::kGate && !layout.contents.gate) continue;
    MOERT_RETURN_IF_ERROR(ReadBias(spec, expert, p, &bias));
    std::memcpy(record + matrix->bias_offset, bias.data(), bias.size() * sizeof(float));
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointExperts::TensorRows> CheckpointExperts::RowsOf(int layer, int expert,
                                                                        Projection p) const {
  const MoeLayerSpec& spec = config_->moe.layers[layer];
  const ExpertTensors& tensors = tensors_[layer];
  if (!tensors.fused) {
    MOERT_ASSIGN_OR_RETURN(const TensorInfo* tensor,
                           checkpoint_->Get(names_.Expert(spec.model_layer, expert, p)));
    return TensorRows{tensor};
  }
  const int64_t matrix = spec.hidden * spec.intermediate;
  if (p == Projection::kDown) return TensorRows{tensors.down, expert * matrix};
  if (tensors.gate_up == nullptr) {
    return TensorRows{p == Projection::kGate ? tensors.gate : tensors.up, expert * matrix};
  }
  const int64_t up = names_.interleaved ? spec.hidden : matrix;
  return TensorRows{tensors.gate_up, 2 * expert * matrix + (p == Projection::kUp ? up : 0),
                    names_.interleaved ? 2 : 1};
}

absl::Status CheckpointExperts::PackRows(const TensorRows& from, const MatrixLayout& layout,
                                         std::byte* record) const {
  constexpr int64_t kElements = int64_t{1} << 17;  // stay in a core's cache
  const int64_t k = layout.k, apart = from.step * k;
  const int64_t most = std::max<int64_t>(kElements / apart / kRowTile, 1) * kRowTile;
  std::vector<uint16_t> rows(std::min(most, layout.rows) * apart);
  for (int64_t first = 0; first < layout.rows; first += most) {
    const int64_t count = std::min(most, layout.rows - first);
    MOERT_RETURN_IF_ERROR(
        checkpoint_->ReadAsBf16(*from.tensor, from.first + first * apart,
                                absl::MakeSpan(rows.data(), (count - 1) * apart + k)));
    for (int64_t r = 1; r < count && apart > k; ++r) {
      std::copy_n(rows.begin() + r * apart, k, rows.begin() + r * k);
    }
    MOERT_RETURN_IF_ERROR(
        PackRowsBf16(layout, first, absl::MakeConstSpan(rows.data(), count * k), record));
  }
  return absl::OkStatus();
}

absl::Status CheckpointExperts::PackOne(int layer, int expert, Projection p,
                                        const MatrixLayout& matrix, std::byte* record) const {
  const MoeLayerSpec& spec = config_->moe.layers[layer];
  const ExpertTensors& tensors = tensors_[layer];
  if (!matrix.scheme.is_bf16()) {
    const StoredMatrix m = Stored(spec, expert, p, tensors.blocks);
    MOERT_ASSIGN_OR_RETURN(const QuantizedMatrix codes, quantized_.Read(m));
    absl::Status status = CheckScales(matrix, codes);
    if (status.ok()) status = PackMatrix(matrix, codes, record);
    if (status.ok()) return status;
    return absl::Status(status.code(), fmt::format("{}: {}: {}", checkpoint_->path(),
                                                   Printable(m.base), status.message()));
  }
  const std::string name = names_.Expert(spec.model_layer, expert, p);
  if (!tensors.in_rows() || (!tensors.fused && quantized_.Has(WeightBase(name)))) {
    std::vector<uint16_t> widened;
    MOERT_RETURN_IF_ERROR(ReadMatrix(name, matrix.rows, matrix.k, &widened));
    return PackMatrixBf16(matrix, widened, record);
  }
  MOERT_ASSIGN_OR_RETURN(const TensorRows rows, RowsOf(layer, expert, p));
  return PackRows(rows, matrix, record);
}

absl::Status CheckpointExperts::ReadRecord(int layer, int expert, const RecordLayout& layout,
                                           std::byte* record) const {
  const bool bf16 = layout.format == ExpertFormat::Uniform(Scheme{});
  if (bf16 && !tensors_[layer].in_rows()) {
    ExpertWeights weights;
    MOERT_RETURN_IF_ERROR(ReadExpert(layer, expert, &weights));
    MOERT_RETURN_IF_ERROR(PackExpertBf16(layout, weights, record));
    return ReadBiases(layer, expert, layout, record);
  }
  const ExpertFormat& format = stored(layer, expert);
  if (!bf16 && !(layout.format == format)) {
    return InvalidArgument("{}: layer {}, expert {} is stored in {}, not in {}",
                           checkpoint_->path(), layer, expert, format.up.Name(),
                           layout.format.up.Name());
  }
  std::memset(record, 0, layout.bytes);
  for (const auto& [p, matrix] :
       {std::pair(Projection::kGate, &layout.gate), std::pair(Projection::kUp, &layout.up),
        std::pair(Projection::kDown, &layout.down)}) {
    if (p == Projection::kGate && !layout.contents.gate) continue;
    MOERT_RETURN_IF_ERROR(PackOne(layer, expert, p, *matrix, record));
  }
  return ReadBiases(layer, expert, layout, record);
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

absl::Status PackExpertBf16(const RecordLayout& layout, const ExpertWeights& weights,
                            std::byte* record) {
  std::memset(record, 0, layout.bytes);
  if (layout.contents.gate) {
    MOERT_RETURN_IF_ERROR(PackMatrixBf16(layout.gate, weights.gate, record));
  }
  MOERT_RETURN_IF_ERROR(PackMatrixBf16(layout.up, weights.up, record));
  return PackMatrixBf16(layout.down, weights.down, record);
}

}  // namespace moert
