// The records of CheckpointExperts.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/bf16.h"
#include "base/errors.h"
#include "base/fmt_absl.h"
#include "base/printable.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint_experts.h"
#include "quant/packing.h"

namespace moert {
namespace {

// Schemes of the library's own have bf16 scales; imported ones are checked as they are packed.
absl::Status CheckScales(const MatrixLayout& layout, const QuantizedMatrix& q) {
  if (layout.scheme.imported()) return absl::OkStatus();
  for (const float scale : q.scales) {
    if (RoundToBf16(scale) == scale) continue;
    return InvalidArgument(
        "the scale {} is no bf16 number, as those of {} are; open the checkpoint widened to bf16, "
        "or quantize it to another scheme",
        scale, layout.scheme.Name());
  }
  return absl::OkStatus();
}

// All but the weights, which are written whole.
void ClearBetween(const RecordLayout& layout, std::byte* record) {
  int64_t at = 0;
  for (const MatrixLayout* m : {&layout.gate, &layout.up, &layout.down}) {
    if (m == &layout.gate && !layout.contents.gate) continue;
    std::memset(record + at, 0, m->weight_offset - at);
    at = m->weight_offset + m->weight_bytes;
  }
  std::memset(record + at, 0, layout.bytes - at);
}

}  // namespace

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

absl::Status CheckpointExperts::PackQuantized(const StoredMatrix& from, const MatrixLayout& layout,
                                              std::byte* record) const {
  const auto named = [&](const absl::Status& status) {
    if (status.ok()) return status;
    return absl::Status(status.code(), fmt::format("{}: {}: {}", checkpoint_->path(),
                                                   Printable(from.base), status.message()));
  };
  MOERT_ASSIGN_OR_RETURN(const QuantizedMatrix groups,
                         quantized_.ReadGroups(from, ChannelOrder::kRecord));
  MOERT_RETURN_IF_ERROR(named(CheckScales(layout, groups)));
  MOERT_RETURN_IF_ERROR(named(PackScales(layout, groups, record)));
  return quantized_.ReadCodes(from, [&](int64_t row, int64_t k, const CodeTile& codes) {
    return named(PackTile(layout, row, k, codes, record));
  });
}

absl::Status CheckpointExperts::PackOne(int layer, int expert, Projection p,
                                        const MatrixLayout& matrix, std::byte* record) const {
  const MoeLayerSpec& spec = config_->moe.layers[layer];
  const ExpertTensors& tensors = tensors_[layer];
  if (!matrix.scheme.is_bf16()) {
    return PackQuantized(Stored(spec, expert, p, tensors.blocks), matrix, record);
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
  ClearBetween(layout, record);
  for (const auto& [p, matrix] :
       {std::pair(Projection::kGate, &layout.gate), std::pair(Projection::kUp, &layout.up),
        std::pair(Projection::kDown, &layout.down)}) {
    if (p == Projection::kGate && !layout.contents.gate) continue;
    MOERT_RETURN_IF_ERROR(PackOne(layer, expert, p, *matrix, record));
  }
  return ReadBiases(layer, expert, layout, record);
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
