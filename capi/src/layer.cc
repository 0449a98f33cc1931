#include "base/status_macros.h"
#include "guard.h"
#include "handles.h"

namespace moert::capi {
namespace {

/// The hidden size of a layer and a check of what the engine cannot see.
absl::StatusOr<int64_t> HiddenSize(const moert_step* step, int32_t layer, moert_stream stream) {
  if (stream != nullptr) {
    return absl::InvalidArgumentError("stream: the CPU backend has no streams, it must be NULL");
  }
  const MoeModelSpec& model = step->engine->model();
  if (layer < 0 || layer >= model.num_layers()) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer is ", layer, ", legal is 0 to ", model.num_layers() - 1));
  }
  return model.layers[layer].hidden;
}

}  // namespace
}  // namespace moert::capi

using namespace moert::capi;

extern "C" {

moert_code moert_layer_forward(moert_step* step, int32_t layer, const void* hidden,
                               int64_t row_stride, moert_dtype dtype, int64_t n_tokens, void* out,
                               moert_stream stream, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(step);
    MOERT_ASSIGN_OR_RETURN(const int64_t cols, HiddenSize(step, layer, stream));
    const auto type = static_cast<moert::DType>(dtype);
    return step->engine->Forward(step->id, layer, {hidden, type, n_tokens, cols, row_stride},
                                 {out, type, n_tokens, cols, row_stride});
  });
}

}  // extern "C"
