#include "checkpoint/fp8_scaler.h"

#include <algorithm>

#include "base/status_macros.h"
#include "checkpoint/safetensors_header.h"

namespace moert {

absl::StatusOr<Fp8Scaler> Fp8Scaler::Load(const Checkpoint& checkpoint, const TensorInfo& weight) {
  Fp8Scaler scaler;
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* scales, checkpoint.Fp8Scales(weight));
  if (scales == nullptr) return scaler;
  scaler.rows_ = weight.shape[weight.shape.size() - 2];
  scaler.cols_ = weight.shape.back();
  scaler.scale_cols_ = scales->shape.back();
  scaler.scale_rows_ = scales->shape[scales->shape.size() - 2];
  scaler.scales_.resize(static_cast<size_t>(scales->elements()));
  MOERT_RETURN_IF_ERROR(checkpoint.ReadAsF32(*scales, 0, absl::MakeSpan(scaler.scales_)));
  return scaler;
}

void Fp8Scaler::Apply(int64_t first, size_t count, float* values) const {
  const int64_t end = first + static_cast<int64_t>(count);
  for (int64_t at = first; at < end;) {
    const int64_t row = at / cols_, col = at % cols_;
    const int64_t block_row = row / rows_ * scale_rows_ + row % rows_ / kFp8BlockRows;
    const float scale = scales_[static_cast<size_t>(block_row * scale_cols_ + col / kFp8BlockCols)];
    // Up to the end of the block's row, or of the matrix's.
    const int64_t run = std::min((col / kFp8BlockCols + 1) * kFp8BlockCols, cols_) - col;
    for (const int64_t stop = std::min(end, at + run); at < stop; ++at) values[at - first] *= scale;
  }
}

}  // namespace moert
