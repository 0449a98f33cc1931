// Hidden states between the host's element type and the fp32 the engine works in.
#ifndef MOERT_LIB_BASE_ROWS_H_
#define MOERT_LIB_BASE_ROWS_H_

#include "moert/tensor.h"

namespace moert {

/// out: [rows, cols] contiguous. f32, bf16 or f16 in.
void WidenRows(const MatrixView& in, float* out);
/// in: [rows, cols] contiguous, rounded to nearest even into out's type.
void NarrowRows(const float* in, const MutableMatrixView& out);

}  // namespace moert

#endif  // MOERT_LIB_BASE_ROWS_H_
