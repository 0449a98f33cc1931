// The arguments of a layer call, checked.
#ifndef MOERT_CAPI_SRC_LAYER_CALL_H_
#define MOERT_CAPI_SRC_LAYER_CALL_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "guard.h"
#include "handles.h"
#include "moert.h"
#include "moert/tensor.h"
#include "moert/tools/trace.h"

namespace moert::capi {

struct LayerArguments {
  MatrixView x;
  MutableMatrixView out;
  std::optional<RoutedInput> routing;  // the host's
  std::optional<CallTimes> times;      // of the routing
};

/// Checks that hidden states, and routings on a device, lie where the backend needs them. The
/// engine checks shapes and types.
absl::Status CheckPlace(const char* name, const moert_tensor& tensor, BackendKind backend);

/// Checks what the engine cannot see.
absl::StatusOr<LayerArguments> ReadLayerCall(const moert_step* step, int32_t layer,
                                             const moert_tensor* x, const moert_routing* routing,
                                             const moert_tensor* out);

absl::Status RunLayer(Engine* engine, StepId step, int32_t layer, const LayerArguments& arguments);

/// The rows * cols elements of `tensor`, which must lie at `place`; empty if that is allowed and
/// the tensor is empty. `name` is for messages.
template <typename T>
absl::StatusOr<absl::Span<T>> TensorSpan(absl::string_view name, const moert_tensor& tensor,
                                         moert_dtype dtype, int64_t rows, int64_t cols,
                                         bool may_be_empty, moert_place place = MOERT_HOST) {
  const auto bad = [name](auto... what) { return Illegal(name, what...); };
  if (tensor.data == nullptr) {
    if (may_be_empty && tensor.rows == 0 && tensor.cols == 0) return absl::Span<T>();
    return bad(".data: must not be NULL");
  }
  if (tensor.place != place) {
    return bad(".place is ", tensor.place, ", legal is ",
               place == MOERT_HOST ? "MOERT_HOST" : "MOERT_DEVICE, as that of ids");
  }
  if (tensor.dtype != dtype) {
    return bad(".dtype is ", tensor.dtype, ", legal is ",
               dtype == MOERT_I32 ? "MOERT_I32" : "MOERT_F32");
  }
  if (tensor.rows != rows || tensor.cols != cols) {
    return bad(": [", tensor.rows, ", ", tensor.cols, "]; this layer of this step takes [", rows,
               ", ", cols, "]");
  }
  if (tensor.row_stride != cols && rows != 1) {
    return bad(".row_stride is ", tensor.row_stride, ", legal is ", cols, ": contiguous");
  }
  return absl::MakeSpan(static_cast<T*>(tensor.data), rows * cols);
}

}  // namespace moert::capi

#endif  // MOERT_CAPI_SRC_LAYER_CALL_H_
