// QuantizedWeights of floating-point codes: NVFP4, MXFP4 and FP8 in blocks.
#include <fmt/format.h>

#include <array>
#include <cmath>

#include "base/checked_math.h"
#include "base/fmt_absl.h"
#include "base/status_macros.h"
#include "checkpoint/fp8_scaler.h"
#include "checkpoint/quantized_weights.h"
#include "checkpoint/safetensors_header.h"

namespace moert {
namespace {

constexpr int64_t kMxGroup = 32;
constexpr int64_t kNvGroup = 16;

// Scales by stored exponent; 0 for exponents that no record can hold.
std::array<float, 256> RecordScales() {
  std::array<float, 256> scales = {};
  for (uint32_t bits = 0; bits < scales.size(); ++bits) {
    const float scale = DecodeScale(ScaleType::kE8M0, bits);
    if (EncodeScale(ScaleType::kE8M0, scale) == bits) scales[bits] = scale;
  }
  return scales;
}

}  // namespace

// e2m1 codes two per byte, the lower channel in the low bits, [rows, k / 2]; scales e4m3 [rows, k /
// 16]; one scale of the whole matrix, by which compressed-tensors divides and modelopt multiplies.
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

absl::Status QuantizedWeights::Nvfp4Groups(const StoredMatrix& m, ChannelOrder,
                                           QuantizedMatrix* q) const {
  const bool packed = config_.form == StoredWeights::kPackedFp4;
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* scales, checkpoint_->Get(m.base + ".weight_scale"));
  MOERT_RETURN_IF_ERROR(ReadScales(*scales, /*by_group=*/false, GroupsOf(kNvGroup, m.k), q));
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

absl::Status QuantizedWeights::Mxfp4Groups(const StoredMatrix& m, ChannelOrder,
                                           QuantizedMatrix* q) const {
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* scales, checkpoint_->Get(m.base + "_scales"));
  std::vector<uint8_t> exponents(m.stored_rows * q->groups());
  MOERT_RETURN_IF_ERROR(
      checkpoint_->ReadBytes(*scales, m.expert * m.stored_rows * q->groups(),
                             {reinterpret_cast<std::byte*>(exponents.data()), exponents.size()}));
  return PutExponents(m, *scales, exponents, q);
}

absl::Status QuantizedWeights::PutExponents(const StoredMatrix& m, const TensorInfo& tensor,
                                            const std::vector<uint8_t>& exponents,
                                            QuantizedMatrix* q) const {
  static const std::array<float, 256> kScales = RecordScales();
  float* scales = q->scales.data();
  for (int64_t r = 0; r < m.rows; ++r) {
    const int64_t row = m.first_row + r * m.row_step;
    for (int64_t g = 0; g < q->groups(); ++g) {
      const uint8_t bits = exponents[row * q->groups() + g];
      *scales = kScales[bits];
      if (*scales++ > 0) continue;
      return Error(tensor, fmt::format("row {}, group {} of expert {}: the exponent is {}, at "
                                       "which weights overflow bf16",
                                       row, g, m.expert, bits));
    }
  }
  return absl::OkStatus();
}

// DeepSeek-V4: one tensor per matrix. e2m1 codes [rows, k / 2], the lower channel in the low bits,
// and exponents [rows, k / 32].
absl::StatusOr<Scheme> QuantizedWeights::Mxfp4RowsScheme(const StoredMatrix& m) const {
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* codes,
                         Tensor(m.base + ".weight", {DType::kI8, DType::kU8}, {m.rows, m.k / 2}));
  if (m.k % kMxGroup != 0) {
    return Error(*codes, fmt::format("{} channels are not whole groups of 32", m.k));
  }
  MOERT_RETURN_IF_ERROR(
      Tensor(m.base + ".scale", {DType::kF8E8M0}, {m.rows, m.k / kMxGroup}).status());
  return Scheme::Parse("mxfp4");
}

absl::Status QuantizedWeights::Mxfp4RowsGroups(const StoredMatrix& m, ChannelOrder,
                                               QuantizedMatrix* q) const {
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* scales, checkpoint_->Get(m.base + ".scale"));
  MOERT_ASSIGN_OR_RETURN(const std::vector<uint8_t> exponents, Whole<uint8_t>(*scales));
  return PutExponents(m, *scales, exponents, q);
}

absl::StatusOr<Scheme> QuantizedWeights::Fp8Scheme(const StoredMatrix& m) const {
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* weight,
                         Tensor(m.base + ".weight", {DType::kF8E4M3}, {m.rows, m.k}));
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* scales, checkpoint_->Fp8Scales(*weight));
  if (scales == nullptr)
    return Error(*weight, "it has neither weight_scale_inv nor weight_scale nor scale");
  return Scheme::Parse("fp8_b128");
}

absl::Status QuantizedWeights::Fp8Groups(const StoredMatrix& m, ChannelOrder,
                                         QuantizedMatrix* q) const {
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* weight, checkpoint_->Get(m.base + ".weight"));
  MOERT_ASSIGN_OR_RETURN(const Fp8Scaler scaler, Fp8Scaler::Load(*checkpoint_, *weight));
  const int64_t groups = q->groups();
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t g = 0; g < groups; ++g) {
      q->scales[r * groups + g] = scaler.ScaleOf(r, g * q->group);
    }
  }
  return absl::OkStatus();
}

}  // namespace moert
