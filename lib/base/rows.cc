#include "base/rows.h"

#include <cstring>

#include "base/bf16.h"

namespace moert {

void WidenRows(const MatrixView& in, float* out) {
  for (int64_t r = 0; r < in.rows; ++r, out += in.cols) {
    if (in.dtype == DType::kF32) {
      std::memcpy(out, static_cast<const float*>(in.data) + r * in.row_stride,
                  in.cols * sizeof(float));
      continue;
    }
    const uint16_t* row = static_cast<const uint16_t*>(in.data) + r * in.row_stride;
    if (in.dtype == DType::kBF16) {
      Bf16ToF32(row, in.cols, out);
    } else {
      for (int64_t c = 0; c < in.cols; ++c) out[c] = F16ToF32(row[c]);
    }
  }
}

void NarrowRows(const float* in, const MutableMatrixView& out) {
  for (int64_t r = 0; r < out.rows; ++r, in += out.cols) {
    if (out.dtype == DType::kF32) {
      std::memcpy(static_cast<float*>(out.data) + r * out.row_stride, in, out.cols * sizeof(float));
      continue;
    }
    uint16_t* row = static_cast<uint16_t*>(out.data) + r * out.row_stride;
    if (out.dtype == DType::kBF16) {
      for (int64_t c = 0; c < out.cols; ++c) row[c] = F32ToBf16(in[c]);
    } else {
      for (int64_t c = 0; c < out.cols; ++c) row[c] = F32ToF16(in[c]);
    }
  }
}

void WeightRows(const float* x, absl::Span<const int32_t> rows, const float* weights, int64_t cols,
                float* out) {
  for (size_t i = 0; i < rows.size(); ++i, out += cols) {
    const float* const from = x + rows[i] * cols;
    for (int64_t c = 0; c < cols; ++c) out[c] = weights[i] * from[c];
  }
}

}  // namespace moert
