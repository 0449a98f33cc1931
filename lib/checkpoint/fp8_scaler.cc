#include "checkpoint/fp8_scaler.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/strip.h"
#include "base/checked_math.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/fmt_absl.h"
#include "base/printable.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors_header.h"

namespace moert {
namespace {

// The part of a weight that shares one scale.
enum class Share { kBlock, kRow, kAll, kIllegal };

std::vector<int64_t> BlocksOf(const TensorInfo& weight) {
  std::vector<int64_t> shape(weight.shape.begin(), weight.shape.end());
  const size_t rank = shape.size();
  shape[rank - 2] = CeilDiv(shape[rank - 2], kFp8BlockRows);
  shape[rank - 1] = CeilDiv(shape[rank - 1], kFp8BlockCols);
  return shape;
}

Share ShareOf(const TensorInfo& weight, const TensorInfo& scales) {
  if (scales.shape == BlocksOf(weight)) return Share::kBlock;
  if (scales.elements() == 1) return Share::kAll;
  const absl::Span<const int64_t> rows = weight.shape.first(weight.shape.size() - 1);
  if (scales.shape == rows) return Share::kRow;
  const bool column = scales.shape.size() == weight.shape.size() && scales.shape.back() == 1;
  return column && scales.shape.first(rows.size()) == rows ? Share::kRow : Share::kIllegal;
}

bool IsFloat(DType type) {
  return type == DType::kF32 || type == DType::kBF16 || type == DType::kF16 ||
         type == DType::kF8E8M0;
}

}  // namespace

absl::StatusOr<const TensorInfo*> Checkpoint::Fp8Scales(const TensorInfo& weight) const try {
  if (weight.dtype != DType::kF8E4M3 || weight.shape.size() < 2) return nullptr;
  const TensorInfo* scales = Find(std::string(weight.name) + "_scale_inv");
  if (scales == nullptr) scales = Find(std::string(weight.name) + "_scale");
  if (absl::string_view base = weight.name;
      scales == nullptr && absl::ConsumeSuffix(&base, ".weight")) {
    scales = Find(std::string(base) + ".scale");
  }
  if (scales == nullptr) return nullptr;
  if (IsFloat(scales->dtype) && ShareOf(weight, *scales) != Share::kIllegal) return scales;
  return InvalidArgument(
      "{}: tensor \"{}\": it is {} {}, legal for the scales of {} are f32, bf16, f16 and f8_e8m0 "
      "of shape {}, one a row, or one",
      file(scales->file).path(), Printable(scales->name), DTypeName(scales->dtype),
      ShapeToString(scales->shape), ShapeToString(weight.shape), ShapeToString(BlocksOf(weight)));
} catch (...) {
  return ExceptionStatus(path_);
}

absl::Status Checkpoint::CheckWeightType(const TensorInfo& tensor) const try {
  if (tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF16 || tensor.dtype == DType::kF32) {
    return absl::OkStatus();
  }
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* scales, Fp8Scales(tensor));
  if (scales != nullptr) return absl::OkStatus();
  return InvalidArgument(
      "{}: tensor \"{}\": its type is {}, legal are bf16, f16, f32, and f8_e4m3 with scales in "
      "{}_scale_inv or {}_scale",
      file(tensor.file).path(), Printable(tensor.name), DTypeName(tensor.dtype),
      Printable(tensor.name), Printable(tensor.name));
} catch (...) {
  return ExceptionStatus(path_);
}

absl::StatusOr<Fp8Scaler> Fp8Scaler::Load(const Checkpoint& checkpoint, const TensorInfo& weight) {
  Fp8Scaler s;
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* scales, checkpoint.Fp8Scales(weight));
  if (scales == nullptr || weight.bytes == 0) return s;
  s.cols_ = weight.shape.back();
  s.rows_ = weight.elements() / s.cols_;
  s.scale_rows_ = s.scale_cols_ = 1;
  s.block_cols_ = s.cols_;
  s.block_rows_ = s.rows_;
  switch (ShareOf(weight, *scales)) {
    case Share::kBlock:
      s.rows_ = weight.shape[weight.shape.size() - 2];
      s.scale_rows_ = scales->shape[scales->shape.size() - 2];
      s.scale_cols_ = scales->shape.back();
      s.block_rows_ = kFp8BlockRows;
      s.block_cols_ = kFp8BlockCols;
      break;
    case Share::kRow:
      s.scale_rows_ = s.rows_;
      s.block_rows_ = 1;
      break;
    case Share::kAll:
    case Share::kIllegal:
      break;
  }
  s.scales_.resize(scales->elements());
  MOERT_RETURN_IF_ERROR(checkpoint.ReadAsF32(*scales, 0, absl::MakeSpan(s.scales_)));
  if (std::all_of(s.scales_.begin(), s.scales_.end(), [](float f) { return std::isfinite(f); })) {
    return s;
  }
  return InvalidArgument("{}: tensor \"{}\": a scale is not finite",
                         checkpoint.file(scales->file).path(), Printable(scales->name));
}

float Fp8Scaler::ScaleOf(int64_t row, int64_t col) const {
  const int64_t block_row = row / rows_ * scale_rows_ + row % rows_ / block_rows_;
  return scales_[block_row * scale_cols_ + col / block_cols_];
}

void Fp8Scaler::Apply(int64_t first, size_t count, float* values) const {
  const int64_t end = first + static_cast<int64_t>(count);
  for (int64_t at = first; at < end;) {
    const int64_t row = at / cols_, col = at % cols_;
    const float scale = ScaleOf(row, col);
    // Up to the end of the block's row, or of the matrix's.
    const int64_t run = std::min((col / block_cols_ + 1) * block_cols_, cols_) - col;
    for (const int64_t stop = std::min(end, at + run); at < stop; ++at) values[at - first] *= scale;
  }
}

}  // namespace moert
