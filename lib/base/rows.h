// Converts hidden states between the host's element type and the engine's fp32.
#ifndef MOERT_LIB_BASE_ROWS_H_
#define MOERT_LIB_BASE_ROWS_H_

#include <cstdint>

#include "absl/types/span.h"
#include "moert/tensor.h"

namespace moert {

/// out: [rows, cols] contiguous. f32, bf16 or f16 in.
void WidenRows(const MatrixView& in, float* out);
/// in: [rows, cols] contiguous, rounded to nearest even into out's type.
void NarrowRows(const float* in, const MutableMatrixView& out);
/// out: [rows.size(), cols], row i is weights[i] times row rows[i] of x.
void WeightRows(const float* x, absl::Span<const int32_t> rows, const float* weights, int64_t cols,
                float* out);

}  // namespace moert

#endif  // MOERT_LIB_BASE_ROWS_H_
