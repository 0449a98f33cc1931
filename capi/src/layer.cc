#include "base/status_macros.h"
#include "guard.h"
#include "handles.h"
#include "layer_call.h"

namespace moert::capi {

absl::StatusOr<LayerViews> MakeViews(const moert_step* step, int32_t layer, const void* hidden,
                                     int64_t row_stride, moert_dtype dtype, int64_t n_tokens,
                                     void* out, moert_stream stream) {
  MOERT_REQUIRE_NOT_NULL(step);
  if (stream != nullptr && stream != step->stream) {
    return absl::InvalidArgumentError("stream: must be NULL or the stream the step began with");
  }
  const MoeModelSpec& model = step->state->engine->model();
  if (layer < 0 || layer >= model.num_layers()) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer is ", layer, ", legal is 0 to ", model.num_layers() - 1));
  }
  const int64_t cols = model.layers[layer].hidden;
  const auto type = static_cast<DType>(dtype);
  return LayerViews{{hidden, type, n_tokens, cols, row_stride},
                    {out, type, n_tokens, cols, row_stride}};
}

}  // namespace moert::capi

using namespace moert::capi;

extern "C" {

moert_code moert_layer_forward(moert_step* step, int32_t layer, const void* hidden,
                               int64_t row_stride, moert_dtype dtype, int64_t n_tokens, void* out,
                               moert_stream stream, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_ASSIGN_OR_RETURN(const LayerViews views, MakeViews(step, layer, hidden, row_stride, dtype,
                                                             n_tokens, out, stream));
    return step->state->engine->Forward(step->id, layer, views.in, views.out);
  });
}

moert_code moert_layer_forward_routed(moert_step* step, int32_t layer, const void* hidden,
                                      int64_t row_stride, moert_dtype dtype, int64_t n_tokens,
                                      const int32_t* ids, const float* weights, int32_t top_k,
                                      int32_t* used_ids, void* out, moert_stream stream,
                                      moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_ASSIGN_OR_RETURN(const LayerViews views, MakeViews(step, layer, hidden, row_stride, dtype,
                                                             n_tokens, out, stream));
    MOERT_REQUIRE_NOT_NULL(ids);
    MOERT_REQUIRE_NOT_NULL(weights);
    const int k = step->state->engine->model().layers[layer].routing.top_k;
    if (top_k != k) {
      return absl::InvalidArgumentError(
          absl::StrCat("top_k is ", top_k, ", that of layer ", layer, " is ", k));
    }
    constexpr int64_t kMostTokens = int64_t{1} << 20;  // of EngineOptions: no product overflows
    if (n_tokens < 1 || n_tokens > kMostTokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("n_tokens is ", n_tokens, ", legal is 1 to ", kMostTokens));
    }
    const size_t slots = static_cast<size_t>(n_tokens * k);
    moert::RoutedInput routing;
    routing.ids = absl::MakeConstSpan(ids, slots);
    routing.weights = absl::MakeConstSpan(weights, slots);
    if (used_ids != nullptr) routing.used_ids = absl::MakeSpan(used_ids, slots);
    return step->state->engine->ForwardRouted(step->id, layer, views.in, routing, views.out);
  });
}

}  // extern "C"
