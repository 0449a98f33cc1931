// What the layer calls have in common.
#ifndef MOERT_CAPI_SRC_LAYER_CALL_H_
#define MOERT_CAPI_SRC_LAYER_CALL_H_

#include "absl/status/statusor.h"
#include "handles.h"
#include "moert.h"
#include "moert/tensor.h"

namespace moert::capi {

struct LayerViews {
  MatrixView in;
  MutableMatrixView out;
};

/// Checks what the engine cannot see.
absl::StatusOr<LayerViews> MakeViews(const moert_step* step, int32_t layer, const void* hidden,
                                     int64_t row_stride, moert_dtype dtype, int64_t n_tokens,
                                     void* out, moert_stream stream);

}  // namespace moert::capi

#endif  // MOERT_CAPI_SRC_LAYER_CALL_H_
