// The arguments of a layer call, checked.
#ifndef MOERT_CAPI_SRC_LAYER_CALL_H_
#define MOERT_CAPI_SRC_LAYER_CALL_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

/// Hidden states, and routings on a device: where the backend takes them. Shapes and types are the
/// engine's to check.
absl::Status CheckPlace(const char* name, const moert_tensor& tensor, BackendKind backend);

/// Checks what the engine cannot see.
absl::StatusOr<LayerArguments> ReadLayerCall(const moert_step* step, int32_t layer,
                                             const moert_tensor* x, const moert_routing* routing,
                                             const moert_tensor* out);

absl::Status RunLayer(Engine* engine, StepId step, int32_t layer, const LayerArguments& arguments);

}  // namespace moert::capi

#endif  // MOERT_CAPI_SRC_LAYER_CALL_H_
