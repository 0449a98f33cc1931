#include "checkpoint/quantized_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <new>

#include "base/bf16.h"
#include "base/checked_math.h"
#include "base/fmt_absl.h"
#include "base/printable.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors_header.h"

namespace moert {
namespace {

constexpr int64_t kInWord = 8;  // 4-bit codes of an int32
constexpr int64_t kMxGroup = 32;
constexpr int64_t kNvGroup = 16;

unsigned Nibble(uint32_t word, int64_t i) { return (word >> (4 * i)) & 15u; }

}  // namespace

bool QuantizedWeights::Has(const std::string& base) const {
  const auto has = [&](const char* suffix) { return checkpoint_->Find(base + suffix) != nullptr; };
  switch (config_.form) {
    case StoredWeights::kPlain:
      return false;
    case StoredWeights::kFp8Blocks:
      return has(".weight_scale_inv");
    case StoredWeights::kGptq:
    case StoredWeights::kAwq:
      return has(".qweight");
    case StoredWeights::kPackedInt4:
    case StoredWeights::kPackedFp4:
      return has(".weight_packed");
    case StoredWeights::kInt8:
      return has(".weight_scale");
    case StoredWeights::kModeloptFp4:
      return has(".weight_scale_2");
    case StoredWeights::kMxfp4:
      return has("_blocks");
  }
  return false;
}

absl::Status QuantizedWeights::Error(const TensorInfo& tensor, const std::string& what) const {
  return absl::InvalidArgumentError(fmt::format("{}: tensor \"{}\": {}",
                                                checkpoint_->file(tensor.file).path(),
                                                Printable(tensor.name), what));
}

absl::StatusOr<const TensorInfo*> QuantizedWeights::Tensor(
    const std::string& name, std::initializer_list<DType> types,
    const std::vector<int64_t>& shape) const {
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* t, checkpoint_->Get(name));
  if (std::find(types.begin(), types.end(), t->dtype) != types.end() && t->shape == shape) return t;
  std::string legal;
  for (const DType type : types) {
    legal += fmt::format("{}{}", legal.empty() ? "" : " or ", DTypeName(type));
  }
  return Error(*t, fmt::format("it is {} {}; {} weights take {} {}", DTypeName(t->dtype),
                               ShapeToString(t->shape), StoredWeightsName(config_.form), legal,
                               ShapeToString(shape)));
}

template <typename T>
absl::StatusOr<std::vector<T>> QuantizedWeights::Whole(const TensorInfo& tensor) const {
  std::vector<T> values(static_cast<size_t>(tensor.bytes) / sizeof(T));
  MOERT_RETURN_IF_ERROR(checkpoint_->ReadBytes(
      tensor, 0, {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(T)}));
  return values;
}

// Stored [groups, rows] (by_group) or [rows, groups].
absl::Status QuantizedWeights::ReadScales(const TensorInfo& tensor, bool by_group,
                                          QuantizedMatrix* q) const {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  MOERT_RETURN_IF_ERROR(checkpoint_->ReadAsF32(tensor, 0, absl::MakeSpan(values)));
  const int64_t groups = q->groups();
  for (int64_t r = 0; r < q->rows; ++r) {
    for (int64_t g = 0; g < groups; ++g) {
      const float scale = values[static_cast<size_t>(by_group ? g * q->rows + r : r * groups + g)];
      if (!std::isfinite(scale)) return Error(tensor, "a scale is not finite");
      q->scales[static_cast<size_t>(r * groups + g)] = scale;
    }
  }
  return absl::OkStatus();
}

// g_idx: which group a channel belongs to. In order, or the codes would need activations that are
// permuted.
absl::Status QuantizedWeights::CheckOrder(const std::string& name, int64_t k) const {
  if (checkpoint_->Find(name) == nullptr) return absl::OkStatus();
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* t, Tensor(name, {DType::kI32}, {k}));
  MOERT_ASSIGN_OR_RETURN(const std::vector<int32_t> groups, Whole<int32_t>(*t));
  for (int64_t i = 0; i < k; ++i) {
    if (groups[static_cast<size_t>(i)] == i / config_.group) continue;
    return Error(
        *t, fmt::format("channel {} is in group {}: channels were quantized in another order "
                        "(act-order, desc_act), which records do not have; moert-pack quantize "
                        "makes a pack of the unquantized model",
                        i, groups[static_cast<size_t>(i)]));
  }
  return absl::OkStatus();
}

// A symmetric file may have zeros all the same: all in the middle.
absl::Status QuantizedWeights::CheckZeros(const StoredMatrix& m, const TensorInfo& tensor,
                                          QuantizedMatrix* q) const {
  constexpr float kMiddle = 8;
  if (!config_.symmetric) return absl::OkStatus();
  for (size_t i = 0; i < q->offsets.size(); ++i) {
    if (q->offsets[i] == kMiddle) continue;
    return Error(tensor, fmt::format("row {} has a zero point of {}, but quantization_config says "
                                     "that weights are symmetric (zero point 8)",
                                     static_cast<int64_t>(i) / q->groups(), q->offsets[i]));
  }
  q->offsets.clear();
  return absl::OkStatus();
}

absl::StatusOr<Scheme> QuantizedWeights::SchemeOf(const StoredMatrix& m) const {
  switch (config_.form) {
    case StoredWeights::kPlain:
      return Scheme{};
    case StoredWeights::kFp8Blocks:
      return Fp8Scheme(m);
    case StoredWeights::kGptq:
    case StoredWeights::kAwq:
      return GptqScheme(m);
    case StoredWeights::kPackedInt4:
      return PackedScheme(m);
    case StoredWeights::kInt8:
      return Int8Scheme(m);
    case StoredWeights::kPackedFp4:
    case StoredWeights::kModeloptFp4:
      return Nvfp4Scheme(m);
    case StoredWeights::kMxfp4:
      return Mxfp4Scheme(m);
  }
  return absl::InternalError("an unknown form of stored weights");
}

absl::StatusOr<QuantizedMatrix> QuantizedWeights::Read(const StoredMatrix& m) const {
  MOERT_ASSIGN_OR_RETURN(const Scheme scheme, SchemeOf(m));
  try {
    QuantizedMatrix q;
    q.rows = m.rows;
    q.k = m.k;
    q.group = scheme.group > 0 ? std::min<int64_t>(scheme.group, m.k) : m.k;
    q.codes.resize(static_cast<size_t>(m.rows * m.k));
    q.scales.resize(static_cast<size_t>(m.rows * q.groups()));
    absl::Status status;
    switch (config_.form) {
      case StoredWeights::kFp8Blocks:
        status = ReadFp8(m, &q);
        break;
      case StoredWeights::kGptq:
      case StoredWeights::kAwq:
        status = ReadGptq(m, &q);
        break;
      case StoredWeights::kPackedInt4:
        status = ReadPacked(m, &q);
        break;
      case StoredWeights::kInt8:
        status = ReadInt8(m, &q);
        break;
      case StoredWeights::kPackedFp4:
      case StoredWeights::kModeloptFp4:
        status = ReadNvfp4(m, &q);
        break;
      case StoredWeights::kMxfp4:
        status = ReadMxfp4(m, &q);
        break;
      case StoredWeights::kPlain:
        status = absl::InternalError("plain weights have no codes");
        break;
    }
    if (!status.ok()) return status;
    return q;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        fmt::format("{}: out of memory for {}", checkpoint_->path(), Printable(m.base)));
  }
}

absl::StatusOr<Scheme> QuantizedWeights::Int4Scheme(const StoredMatrix& m,
                                                    const TensorInfo& scales) const {
  if (m.k % config_.group != 0 && m.k > config_.group) {
    return Error(scales, fmt::format("{} channels are not whole groups of {}", m.k, config_.group));
  }
  return Scheme::Parse(fmt::format("w4a16_g{}{}{}", config_.group, config_.symmetric ? "" : "_zp",
                                   scales.dtype == DType::kF16 ? "_f16" : ""));
}

// GPTQ: codes eight input channels a word, [k / 8, rows]; AWQ: eight output channels a word,
// [k, rows / 8]. Both: zeros [groups, rows / 8], scales [groups, rows].
absl::StatusOr<Scheme> QuantizedWeights::GptqScheme(const StoredMatrix& m) const {
  const bool awq = config_.form == StoredWeights::kAwq;
  const int64_t groups = CeilDiv<int64_t>(m.k, config_.group);
  if (m.rows % kInWord != 0 || m.k % kInWord != 0) {
    MOERT_ASSIGN_OR_RETURN(const TensorInfo* t, checkpoint_->Get(m.base + ".qweight"));
    return Error(*t, fmt::format("[{}, {}] weights: legal are multiples of 8", m.rows, m.k));
  }
  const std::vector<int64_t> shape = awq ? std::vector<int64_t>{m.k, m.rows / kInWord}
                                         : std::vector<int64_t>{m.k / kInWord, m.rows};
  MOERT_RETURN_IF_ERROR(Tensor(m.base + ".qweight", {DType::kI32}, shape).status());
  MOERT_RETURN_IF_ERROR(
      Tensor(m.base + ".qzeros", {DType::kI32}, {groups, m.rows / kInWord}).status());
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* scales,
                         Tensor(m.base + ".scales", {DType::kF16, DType::kBF16}, {groups, m.rows}));
  return Int4Scheme(m, *scales);
}

absl::Status QuantizedWeights::ReadGptq(const StoredMatrix& m, QuantizedMatrix* q) const {
  // Where the columns of a word lie in AWQ's files.
  constexpr int64_t kAwqOrder[kInWord] = {0, 2, 4, 6, 1, 3, 5, 7};
  const bool awq = config_.form == StoredWeights::kAwq;
  MOERT_RETURN_IF_ERROR(CheckOrder(m.base + ".g_idx", m.k));
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* codes, checkpoint_->Get(m.base + ".qweight"));
  MOERT_ASSIGN_OR_RETURN(const std::vector<uint32_t> words, Whole<uint32_t>(*codes));
  const int64_t row_words = m.rows / kInWord;
  for (int64_t at = 0; at < static_cast<int64_t>(words.size()); ++at) {
    const uint32_t word = words[static_cast<size_t>(at)];
    for (int64_t i = 0; i < kInWord; ++i) {
      const int64_t row = awq ? at % row_words * kInWord + kAwqOrder[i] : at % m.rows;
      const int64_t k = awq ? at / row_words : at / m.rows * kInWord + i;
      q->codes[static_cast<size_t>(row * m.k + k)] = static_cast<uint8_t>(Nibble(word, i));
    }
  }
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* zeros, checkpoint_->Get(m.base + ".qzeros"));
  MOERT_ASSIGN_OR_RETURN(const std::vector<uint32_t> zero_words, Whole<uint32_t>(*zeros));
  q->offsets.resize(q->scales.size());
  for (int64_t g = 0; g < q->groups(); ++g) {
    for (int64_t row = 0; row < m.rows; ++row) {
      const int64_t column = row % kInWord;
      const int64_t place =
          awq ? std::find(kAwqOrder, kAwqOrder + kInWord, column) - kAwqOrder : column;
      const uint32_t word = zero_words[static_cast<size_t>(g * row_words + row / kInWord)];
      q->offsets[static_cast<size_t>(row * q->groups() + g)] =
          static_cast<float>(Nibble(word, place) + (config_.less_one ? 1 : 0));
    }
  }
  MOERT_RETURN_IF_ERROR(CheckZeros(m, *zeros, q));
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* scales, checkpoint_->Get(m.base + ".scales"));
  return ReadScales(*scales, /*by_group=*/true, q);
}

// compressed-tensors: codes [rows, k / 8], zeros [rows / 8, groups], scales [rows, groups].
absl::StatusOr<Scheme> QuantizedWeights::PackedScheme(const StoredMatrix& m) const {
  const int64_t groups = CeilDiv<int64_t>(m.k, config_.group);
  MOERT_RETURN_IF_ERROR(
      Tensor(m.base + ".weight_packed", {DType::kI32}, {m.rows, CeilDiv<int64_t>(m.k, kInWord)})
          .status());
  if (!config_.symmetric) {
    MOERT_RETURN_IF_ERROR(Tensor(m.base + ".weight_zero_point", {DType::kI32},
                                 {CeilDiv<int64_t>(m.rows, kInWord), groups})
                              .status());
  }
  MOERT_ASSIGN_OR_RETURN(
      const TensorInfo* scales,
      Tensor(m.base + ".weight_scale", {DType::kF16, DType::kBF16}, {m.rows, groups}));
  return Int4Scheme(m, *scales);
}

absl::Status QuantizedWeights::ReadPacked(const StoredMatrix& m, QuantizedMatrix* q) const {
  MOERT_RETURN_IF_ERROR(CheckOrder(m.base + ".weight_g_idx", m.k));
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* codes, checkpoint_->Get(m.base + ".weight_packed"));
  MOERT_ASSIGN_OR_RETURN(const std::vector<uint32_t> words, Whole<uint32_t>(*codes));
  const int64_t row_words = CeilDiv<int64_t>(m.k, kInWord);
  for (int64_t row = 0; row < m.rows; ++row) {
    for (int64_t k = 0; k < m.k; ++k) {
      q->codes[static_cast<size_t>(row * m.k + k)] = static_cast<uint8_t>(
          Nibble(words[static_cast<size_t>(row * row_words + k / kInWord)], k % kInWord));
    }
  }
  if (!config_.symmetric) {
    MOERT_ASSIGN_OR_RETURN(const TensorInfo* zeros,
                           checkpoint_->Get(m.base + ".weight_zero_point"));
    MOERT_ASSIGN_OR_RETURN(const std::vector<uint32_t> zero_words, Whole<uint32_t>(*zeros));
    q->offsets.resize(q->scales.size());
    for (int64_t row = 0; row < m.rows; ++row) {
      for (int64_t g = 0; g < q->groups(); ++g) {
        const uint32_t word = zero_words[static_cast<size_t>(row / kInWord * q->groups() + g)];
        q->offsets[static_cast<size_t>(row * q->groups() + g)] =
            static_cast<float>(Nibble(word, row % kInWord));
      }
    }
  }
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* scales, checkpoint_->Get(m.base + ".weight_scale"));
  return ReadScales(*scales, /*by_group=*/false, q);
}

// compressed-tensors: signed bytes [rows, k], scales [rows, 1] or [rows, groups]. Records have
// scales of bf16.
absl::StatusOr<Scheme> QuantizedWeights::Int8Scheme(const StoredMatrix& m) const {
  const int64_t groups = config_.group > 0 ? CeilDiv<int64_t>(m.k, config_.group) : 1;
  MOERT_RETURN_IF_ERROR(Tensor(m.base + ".weight", {DType::kI8}, {m.rows, m.k}).status());
  MOERT_RETURN_IF_ERROR(
      Tensor(m.base + ".weight_scale", {DType::kBF16, DType::kF16, DType::kF32}, {m.rows, groups})
          .status());
  return Scheme::Parse(config_.group > 0     ? "w8a16_g128"
                       : config_.int8_inputs ? "w8a8"
                                             : "w8a16_g-1");
}

absl::Status QuantizedWeights::ReadInt8(const StoredMatrix& m, QuantizedMatrix* q) const {
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* codes, checkpoint_->Get(m.base + ".weight"));
  MOERT_ASSIGN_OR_RETURN(q->codes, Whole<uint8_t>(*codes));
  for (uint8_t& code : q->codes) code = static_cast<uint8_t>(code ^ 0x80);  // + 128
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* scales, checkpoint_->Get(m.base + ".weight_scale"));
  return ReadScales(*scales, /*by_group=*/false, q);
}

// e2m1 codes two a byte, the lower channel in the low bits, [rows, k / 2]; scales e4m3 [rows, k /
// 16]; one scale of all, by which compressed-tensors divides and modelopt multiplies.
absl::StatusOr<Scheme> QuantizedWeights::Nvfp4Scheme(const StoredMatrix& m) const {
  const bool packed = config_.form == StoredWeights::kPackedFp4;
  const std::string codes = m.base + (packed ? ".weight_packed" : ".weight");
  MOERT_RETURN_IF_ERROR(Tensor(codes, {DType::kU8}, {m.rows, CeilDiv<int64_t>(m.k, 2)}).status());
  MOERT_RETURN_IF_ERROR(
      Tensor(m.base + ".weight_scale", {DType::kF8E4M3}, {m.rows, CeilDiv<int64_t>(m.k, kNvGroup)})
          .status());
  const std::string scale = m.base + (packed ? ".weight_global_scale" : ".weight_scale_2");
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* t, checkpoint_->Get(scale));
  if (t->dtype != DType::kF32 || t->elements() != 1) {
    return Error(*t, fmt::format("it is {} {}; nvfp4 weights take one f32", DTypeName(t->dtype),
                                 ShapeToString(t->shape)));
  }
  return Scheme::Parse("nvfp4");
}

absl::Status QuantizedWeights::ReadNvfp4(const StoredMatrix& m, QuantizedMatrix* q) const {
  const bool packed = config_.form == StoredWeights::kPackedFp4;
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* codes,
                         checkpoint_->Get(m.base + (packed ? ".weight_packed" : ".weight")));
  MOERT_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes, Whole<uint8_t>(*codes));
  const int64_t row_bytes = CeilDiv<int64_t>(m.k, 2);
  for (int64_t row = 0; row < m.rows; ++row) {
    for (int64_t k = 0; k < m.k; ++k) {
      const uint8_t byte = bytes[static_cast<size_t>(row * row_bytes + k / 2)];
      q->codes[static_cast<size_t>(row * m.k + k)] =
          static_cast<uint8_t>(k % 2 == 0 ? byte & 15 : byte >> 4);
    }
  }
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* scales, checkpoint_->Get(m.base + ".weight_scale"));
  MOERT_RETURN_IF_ERROR(ReadScales(*scales, /*by_group=*/false, q));
  for (const float scale : q->scales) {
    if (scale < 0) return Error(*scales, "a scale is below 0");
  }
  MOERT_ASSIGN_OR_RETURN(
      const TensorInfo* whole,
      checkpoint_->Get(m.base + (packed ? ".weight_global_scale" : ".weight_scale_2")));
  float value = 0;
  MOERT_RETURN_IF_ERROR(checkpoint_->ReadAsF32(*whole, 0, {&value, 1}));
  q->matrix_scale = packed ? 1.0f / value : value;
  if (std::isfinite(q->matrix_scale) && q->matrix_scale > 0) return absl::OkStatus();
  return Error(*whole, fmt::format("it is {}, legal is a finite number above 0", value));
}

// gpt-oss: all experts in one tensor. e2m1 codes [experts, rows, k / 32, 16], the lower channel in
// the low bits, and exponents [experts, rows, k / 32].
absl::StatusOr<Scheme> QuantizedWeights::Mxfp4Scheme(const StoredMatrix& m) const {
  const int64_t groups = m.k / kMxGroup;
  if (m.k % kMxGroup != 0) {
    MOERT_ASSIGN_OR_RETURN(const TensorInfo* t, checkpoint_->Get(m.base + "_blocks"));
    return Error(*t, fmt::format("{} channels are not whole groups of 32", m.k));
  }
  MOERT_RETURN_IF_ERROR(
      Tensor(m.base + "_blocks", {DType::kU8}, {m.experts, m.stored_rows, groups, kMxGroup / 2})
          .status());
  MOERT_RETURN_IF_ERROR(
      Tensor(m.base + "_scales", {DType::kU8, DType::kF8E8M0}, {m.experts, m.stored_rows, groups})
          .status());
  return Scheme::Parse("mxfp4");
}

absl::Status QuantizedWeights::ReadMxfp4(const StoredMatrix& m, QuantizedMatrix* q) const {
  const int64_t groups = m.k / kMxGroup, row_bytes = m.k / 2;
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* blocks, checkpoint_->Get(m.base + "_blocks"));
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* scales, checkpoint_->Get(m.base + "_scales"));
  const auto part = [&](const TensorInfo& t, int64_t width,
                        std::vector<uint8_t>* bytes) -> absl::Status {
    bytes->resize(static_cast<size_t>(m.stored_rows * width));
    return checkpoint_->ReadBytes(t, m.expert * m.stored_rows * width,
                                  {reinterpret_cast<std::byte*>(bytes->data()), bytes->size()});
  };
  std::vector<uint8_t> codes, exponents;
  MOERT_RETURN_IF_ERROR(part(*blocks, row_bytes, &codes));
  MOERT_RETURN_IF_ERROR(part(*scales, groups, &exponents));
  for (int64_t r = 0; r < m.rows; ++r) {
    const int64_t row = m.first_row + r * m.row_step;
    for (int64_t i = 0; i < row_bytes; ++i) {
      const uint8_t byte = codes[static_cast<size_t>(row * row_bytes + i)];
      q->codes[static_cast<size_t>(r * m.k + 2 * i)] = byte & 15;
      q->codes[static_cast<size_t>(r * m.k + 2 * i + 1)] = static_cast<uint8_t>(byte >> 4);
    }
    for (int64_t g = 0; g < groups; ++g) {
      const uint8_t bits = exponents[static_cast<size_t>(row * groups + g)];
      const float scale = DecodeScale(ScaleType::kE8M0, bits);
      if (EncodeScale(ScaleType::kE8M0, scale) != bits) {
        return Error(*scales, fmt::format("row {}, group {} of expert {}: the exponent is {}, at "
                                          "which weights overflow bf16",
                                          row, g, m.expert, bits));
      }
      q->scales[static_cast<size_t>(r * groups + g)] = scale;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Scheme> QuantizedWeights::Fp8Scheme(const StoredMatrix& m) const {
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* weight,
                         Tensor(m.base + ".weight", {DType::kF8E4M3}, {m.rows, m.k}));
  MOERT_RETURN_IF_ERROR(checkpoint_->Fp8Scales(*weight).status());
  return Scheme::Parse("fp8_b128");
}

absl::Status QuantizedWeights::ReadFp8(const StoredMatrix& m, QuantizedMatrix* q) const {
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* weight, checkpoint_->Get(m.base + ".weight"));
  MOERT_ASSIGN_OR_RETURN(q->codes, Whole<uint8_t>(*weight));
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* scales, checkpoint_->Fp8Scales(*weight));
  if (scales == nullptr) return Error(*weight, "it has no weight_scale_inv");
  std::vector<float> blocks(static_cast<size_t>(scales->elements()));
  MOERT_RETURN_IF_ERROR(checkpoint_->ReadAsF32(*scales, 0, absl::MakeSpan(blocks)));
  const int64_t groups = q->groups();
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t g = 0; g < groups; ++g) {
      const float scale = blocks[static_cast<size_t>(r / kFp8BlockRows * groups + g)];
      if (!std::isfinite(scale)) return Error(*scales, "a scale is not finite");
      q->scales[static_cast<size_t>(r * groups + g)] = scale;
    }
  }
  return absl::OkStatus();
}

}  // namespace moert
