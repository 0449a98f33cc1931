// The records of CheckpointExperts.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/bf16.h"
#include "base/checked_math.h"
#include "base/errors.h"
#include "base/fmt_absl.h"
#include "base/printable.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint_experts.h"
#include "quant/packing.h"

namespace moert {
namespace {

constexpr int64_t kPassElements = int64_t{1} << 17;  // stay in a core's cache

// The library's own schemes have bf16 scales; imported schemes are checked when they are packed.
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

void Clear(int64_t first, int64_t end, std::byte* record) {
  std::memset(record + first, 0, static_cast<size_t>(end - first));
}

// The number of pieces of a matrix's weights.
int64_t WeightParts(const MatrixLayout& matrix, bool whole) {
  constexpr int64_t kPartBytes = int64_t{256} << 10;
  return whole ? 1 : std::max<int64_t>(1, matrix.weight_bytes / kPartBytes);
}

absl::Span<const Projection> MatricesOf(const RecordLayout& layout) {
  static constexpr Projection kAll[] = {Projection::kGate, Projection::kUp, Projection::kDown};
  return absl::MakeConstSpan(kAll).subspan(layout.contents.gate ? 0 : 1);
}

const MatrixLayout& MatrixOf(const RecordLayout& layout, Projection p) {
  return OfProjection(p, layout.gate, layout.up, layout.down);
}

}  // namespace

absl::Status CheckpointExperts::ReadBias(const MoeLayerSpec& l, int expert, Projection p,
                                         const MatrixLayout& matrix, std::byte* record) const {
  const int64_t rows = matrix.rows;
  std::vector<float> section;
  if (!tensors_[config_->MoeLayerIndex(l.model_layer)].fused) {
    MOERT_ASSIGN_OR_RETURN(
        section, checkpoint_->ReadF32(WeightBase(names_.Expert(l.model_layer, expert, p)) + ".bias",
                                      {rows}));
  } else {
    const bool down = p == Projection::kDown;
    const int64_t width = down ? rows : 2 * rows;
    MOERT_ASSIGN_OR_RETURN(const TensorInfo* t,
                           checkpoint_->Get(names_.ExpertsPrefix(l.model_layer) +
                                            (down ? "down_proj_bias" : "gate_up_proj_bias")));
    section.resize(width);
    MOERT_RETURN_IF_ERROR(checkpoint_->ReadAsF32(*t, expert * width, absl::MakeSpan(section)));
    const int64_t step = !down && names_.interleaved ? 2 : 1;
    const int64_t first = p != Projection::kUp ? 0 : names_.interleaved ? 1 : rows;
    for (int64_t r = 0; r < rows; ++r) section[r] = section[first + r * step];
  }
  std::memcpy(record + matrix.bias_offset, section.data(), rows * sizeof(float));
  const int64_t end = RoundUp(matrix.padded_rows * int64_t{sizeof(float)}, kSectionAlignment);
  Clear(matrix.bias_offset + rows * int64_t{sizeof(float)}, matrix.bias_offset + end, record);
  return absl::OkStatus();
}

absl::Status CheckpointExperts::CheckContents(int layer, const RecordLayout& layout) const {
  const MoeLayerSpec& spec = config_->moe.layers[layer];
  if (layout.contents == RecordContents{spec.activation.gated, spec.expert_bias}) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "{}: layer {}: a record that is to hold an expert has to be laid out by "
      "ExpertRecordLayout: gate {}, biases {}; this one: gate {}, biases {}",
      checkpoint_->path(), layer, spec.activation.gated, spec.expert_bias, layout.contents.gate,
      layout.contents.biases);
}

absl::Status CheckpointExperts::CheckLayout(int layer, int expert,
                                            const RecordLayout& layout) const {
  const ExpertFormat& format = stored(layer, expert);
  if (layout.format == ExpertFormat::Uniform(Scheme{}) || layout.format == format) {
    return CheckContents(layer, layout);
  }
  return InvalidArgument("{}: layer {}, expert {} is stored in {}, not in {}", checkpoint_->path(),
                         layer, expert, format.up.Name(), layout.format.up.Name());
}

absl::Status CheckpointExperts::ReadBiases(int layer, int expert, const RecordLayout& layout,
                                           std::byte* record) const {
  MOERT_RETURN_IF_ERROR(CheckContents(layer, layout));
  if (!layout.contents.biases) return absl::OkStatus();
  for (const Projection p : MatricesOf(layout)) {
    MOERT_RETURN_IF_ERROR(
        ReadBias(config_->moe.layers[layer], expert, p, MatrixOf(layout, p), record));
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointExperts::StoredFloats> CheckpointExperts::FloatsOf(int layer, int expert,
                                                                            Projection p) const {
  const MoeLayerSpec& spec = config_->moe.layers[layer];
  const ExpertTensors& tensors = tensors_[layer];
  const bool down = p == Projection::kDown;
  const int64_t k = down ? spec.intermediate : spec.hidden;
  const int64_t matrix = spec.hidden * spec.intermediate;
  if (!tensors.fused) {
    MOERT_ASSIGN_OR_RETURN(const TensorInfo* tensor,
                           checkpoint_->Get(names_.Expert(spec.model_layer, expert, p)));
    return StoredFloats{tensor, 0, k};
  }
  const TensorInfo* const own = OfProjection(p, tensors.gate, tensors.up, tensors.down);
  // Gate and up in one tensor: rows, or the columns of channels, one after the other or
  // alternating.
  const bool both = !down && tensors.gate_up != nullptr;
  const int64_t rows = (down ? spec.hidden : spec.intermediate) * (both ? 2 : 1);
  StoredFloats from = {both ? tensors.gate_up : own, expert * matrix * (both ? 2 : 1), k};
  from.by_channel = down ? tensors.down_transposed : tensors.transposed;
  if (from.by_channel) {
    from.row_step = 1;
    from.k_step = rows;
  }
  if (both && p == Projection::kUp) {
    from.first += from.row_step * (names_.interleaved ? 1 : spec.intermediate);
  }
  if (both && names_.interleaved) from.row_step *= 2;
  return from;
}

absl::Status CheckpointExperts::ReadRows(const StoredFloats& from, int64_t first, int64_t count,
                                         int64_t k, uint16_t* rows) const {
  const int64_t apart = from.row_step;
  MOERT_RETURN_IF_ERROR(checkpoint_->ReadAsBf16(*from.tensor, from.first + first * apart,
                                                absl::MakeSpan(rows, (count - 1) * apart + k)));
  for (int64_t r = 1; r < count && apart > k; ++r) {
    std::copy_n(rows + r * apart, k, rows + r * k);
  }
  return absl::OkStatus();
}

absl::Status CheckpointExperts::ReadChannels(const StoredFloats& from, int64_t first, int64_t count,
                                             int64_t rows, uint16_t* lines) const {
  const int64_t apart = from.k_step, step = from.row_step;
  MOERT_RETURN_IF_ERROR(
      checkpoint_->ReadAsBf16(*from.tensor, from.first + first * apart,
                              absl::MakeSpan(lines, (count - 1) * apart + (rows - 1) * step + 1)));
  for (int64_t i = 0; i < count && step > 1; ++i) {
    uint16_t* const line = lines + i * apart;
    for (int64_t r = 1; r < rows; ++r) line[r] = line[r * step];
  }
  return absl::OkStatus();
}

absl::Status CheckpointExperts::ReadFloats(const StoredFloats& from, int64_t rows, int64_t k,
                                           std::vector<uint16_t>* out) const {
  if (from.by_channel) {
    const auto lines = std::make_unique_for_overwrite<uint16_t[]>(k * from.k_step);
    MOERT_RETURN_IF_ERROR(ReadChannels(from, 0, k, rows, lines.get()));
    *out = TurnChannels(lines.get(), from.k_step, rows, k);
    return absl::OkStatus();
  }
  out->resize(rows * from.row_step);
  MOERT_RETURN_IF_ERROR(ReadRows(from, 0, rows, k, out->data()));
  out->resize(rows * k);
  return absl::OkStatus();
}

absl::Status CheckpointExperts::PackRows(const StoredFloats& from, const MatrixLayout& layout,
                                         const MatrixPart& part, std::byte* record) const {
  const auto [begin, end] = part.Of(layout.rows, kRowTile);
  const int64_t most = std::max<int64_t>(kPassElements / from.row_step / kRowTile, 1) * kRowTile;
  const auto rows =
      std::make_unique_for_overwrite<uint16_t[]>(std::min(most, end - begin) * from.row_step);
  for (int64_t first = begin; first < end; first += most) {
    const int64_t count = std::min(most, end - first);
    MOERT_RETURN_IF_ERROR(ReadRows(from, first, count, layout.k, rows.get()));
    MOERT_RETURN_IF_ERROR(
        PackRowsBf16(layout, first, absl::MakeConstSpan(rows.get(), count * layout.k), record));
  }
  return absl::OkStatus();
}

absl::Status CheckpointExperts::PackChannels(const StoredFloats& from, const MatrixLayout& layout,
                                             const MatrixPart& part, std::byte* record) const {
  const auto [begin, end] = part.Of(layout.k, kKTile);
  const int64_t apart = from.k_step;
  const int64_t most = std::max<int64_t>(kPassElements / apart / kKTile, 1) * kKTile;
  const auto lines =
      std::make_unique_for_overwrite<uint16_t[]>(std::min(most, end - begin) * apart);
  for (int64_t first = begin; first < end; first += most) {
    const int64_t count = std::min(most, end - first);
    MOERT_RETURN_IF_ERROR(ReadChannels(from, first, count, layout.rows, lines.get()));
    MOERT_RETURN_IF_ERROR(PackChannelsBf16(
        layout, first, absl::MakeConstSpan(lines.get(), (count - 1) * apart + layout.rows), apart,
        record));
  }
  return absl::OkStatus();
}

absl::Status CheckpointExperts::NamedError(const absl::Status& status,
                                           const StoredMatrix& m) const {
  if (status.ok()) return status;
  return absl::Status(status.code(), fmt::format("{}: {}: {}", checkpoint_->path(),
                                                 Printable(m.base), status.message()));
}

bool CheckpointExperts::Widens(int layer, int expert, Projection p,
                               const MatrixLayout& matrix) const {
  const ExpertFormat& format = stored(layer, expert);
  return matrix.scheme.is_bf16() && !OfProjection(p, format.gate, format.up, format.down).is_bf16();
}

absl::Status CheckpointExperts::ReadWeights(int layer, int expert, Projection p,
                                            const MatrixLayout& matrix, const MatrixPart& part,
                                            std::byte* record) const {
  if (!matrix.scheme.is_bf16()) {
    const StoredMatrix from = Stored(config_->moe.layers[layer], expert, p, tensors_[layer].blocks);
    const auto pack = [&](int64_t row, int64_t k, const CodeTile& codes) {
      return NamedError(PackTile(matrix, row, k, codes, record), from);
    };
    return quantized_.ReadCodes(from, pack, part);
  }
  if (Widens(layer, expert, p, matrix)) {
    std::vector<float> wide;
    MOERT_RETURN_IF_ERROR(ReadWidened(layer, expert, p, &wide));
    return PackMatrixBf16(matrix, absl::MakeConstSpan(wide), record);
  }
  MOERT_ASSIGN_OR_RETURN(const StoredFloats from, FloatsOf(layer, expert, p));
  return from.by_channel ? PackChannels(from, matrix, part, record)
                         : PackRows(from, matrix, part, record);
}

absl::Status CheckpointExperts::ReadOthers(int layer, int expert, Projection p,
                                           const MatrixLayout& matrix, std::byte* record) const {
  const MoeLayerSpec& spec = config_->moe.layers[layer];
  const int64_t end = matrix.scale_offset + matrix.scale_bytes;
  Clear(matrix.weight_offset + matrix.weight_bytes, matrix.scale_offset, record);
  Clear(end, RoundUp(end, kSectionAlignment), record);
  if (!matrix.scheme.is_bf16()) {
    const StoredMatrix from = Stored(spec, expert, p, tensors_[layer].blocks);
    MOERT_ASSIGN_OR_RETURN(const QuantizedMatrix groups,
                           quantized_.ReadGroups(from, ChannelOrder::kRecord));
    MOERT_RETURN_IF_ERROR(NamedError(CheckScales(matrix, groups), from));
    MOERT_RETURN_IF_ERROR(NamedError(PackScales(matrix, groups, record), from));
  }
  return spec.expert_bias ? ReadBias(spec, expert, p, matrix, record) : absl::OkStatus();
}

int64_t CheckpointExperts::num_pieces(int layer, int expert, const RecordLayout& layout) const {
  int64_t pieces = 0;
  for (const Projection p : MatricesOf(layout)) {
    const MatrixLayout& matrix = MatrixOf(layout, p);
    pieces += 1 + WeightParts(matrix, Widens(layer, expert, p, matrix));
  }
  return pieces;
}

absl::Status CheckpointExperts::ReadPiece(int layer, int expert, const RecordLayout& layout,
                                          int64_t piece, std::byte* record) const {
  MOERT_RETURN_IF_ERROR(CheckLayout(layer, expert, layout));
  for (const Projection p : MatricesOf(layout)) {
    const MatrixLayout& matrix = MatrixOf(layout, p);
    if (piece == 0) return ReadOthers(layer, expert, p, matrix, record);
    const int64_t parts = WeightParts(matrix, Widens(layer, expert, p, matrix));
    if (piece <= parts) {
      return ReadWeights(layer, expert, p, matrix, {piece - 1, parts}, record);
    }
    piece -= 1 + parts;
  }
  return OutOfRange("{}: layer {}, expert {}: there is no such piece", checkpoint_->path(), layer,
                    expert);
}

// Looks up each matrix's tensors once, not once per piece.
absl::Status CheckpointExperts::ReadRecord(int layer, int expert, const RecordLayout& layout,
                                           std::byte* record) const {
  MOERT_RETURN_IF_ERROR(CheckLayout(layer, expert, layout));
  for (const Projection p : MatricesOf(layout)) {
    const MatrixLayout& matrix = MatrixOf(layout, p);
    MOERT_RETURN_IF_ERROR(ReadOthers(layer, expert, p, matrix, record));
    MOERT_RETURN_IF_ERROR(ReadWeights(layer, expert, p, matrix, {}, record));
  }
  return absl::OkStatus();
}

int64_t CheckpointExperts::scratch_bytes(int layer, bool widen) const {
  constexpr int64_t kConverted = int64_t{64} << 10;  // elements, as they are stored and as floats
  constexpr int64_t kNames = 4096;
  const MoeLayerSpec& spec = config_->moe.layers[layer];
  const int64_t matrix = spec.hidden * spec.intermediate;
  const int64_t line = std::max(spec.hidden, spec.intermediate);
  // Lines of gate and up, 64 at least.
  const int64_t pass = std::min(std::max(2 * kPassElements, 256 * line), 4 * matrix + 32 * line);
  int64_t most = 0;
  for (const ExpertFormat& format : stored_[layer]) {
    for (const Scheme& scheme : {format.gate, format.up, format.down}) {
      if (scheme.is_bf16()) continue;
      // Scales as they are stored and as floats, zeros, and the channels' order.
      const int64_t k = scheme.group > 0 ? scheme.group : spec.intermediate;
      const int64_t groups = 13 * (matrix / std::min({k, spec.hidden, spec.intermediate}) + line);
      // Codes, floats, and in act-order a scale and a zero of each.
      const bool order = scheme.weight_bits == 4 && !scheme.fp4;
      most = std::max(most, groups + 12 * line + (!widen ? 0 : order ? 13 * matrix : 5 * matrix));
    }
  }
  const ExpertTensors& tensors = tensors_[layer];
  for (const TensorInfo* t : {tensors.gate_up, tensors.gate, tensors.up, tensors.down}) {
    if (t == nullptr) continue;
    const absl::StatusOr<const TensorInfo*> scales = checkpoint_->Fp8Scales(*t);
    if (scales.ok() && *scales != nullptr) most = std::max(most, 4 * (*scales)->elements());
  }
  return pass + 8 * std::min(2 * matrix, kConverted) + most + 16 * line + kNames;
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
