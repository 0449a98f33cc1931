#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "guard.h"
#include "handles.h"
#include "layer_call.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

absl::string_view PlaceName(moert_place place) {
  return place == MOERT_HOST     ? "MOERT_HOST"
         : place == MOERT_DEVICE ? "MOERT_DEVICE"
                                 : "no moert_place";
}

/// Hidden states: where the backend takes them. Shapes and types are the engine's to check.
absl::Status CheckPlace(const char* name, const moert_tensor& tensor, BackendKind backend) {
  const moert_place legal = backend == BackendKind::kCuda ? MOERT_DEVICE : MOERT_HOST;
  if (tensor.place == legal) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ".place is ", tensor.place, " (", PlaceName(tensor.place), "), the ",
                   BackendName(backend), " backend takes ", PlaceName(legal)));
}

/// One tensor of a routing as a span of rows * cols elements; empty if it may be and is.
template <typename T>
absl::StatusOr<absl::Span<T>> RoutingSpan(const char* name, const moert_tensor& tensor,
                                          moert_dtype dtype, int64_t rows, int64_t cols,
                                          bool may_be_empty) {
  const auto bad = [name](auto... what) {
    return absl::InvalidArgumentError(absl::StrCat("routing.", name, what...));
  };
  if (tensor.data == nullptr) {
    if (may_be_empty && tensor.rows == 0 && tensor.cols == 0) return absl::Span<T>();
    return bad(".data: must not be NULL");
  }
  if (tensor.place == MOERT_DEVICE) {
    return absl::UnimplementedError(absl::StrCat(
        "routing.", name, ".place is MOERT_DEVICE: copy the routing to host memory first"));
  }
  if (tensor.place != MOERT_HOST) return bad(".place is ", tensor.place, ", legal is MOERT_HOST");
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
  return absl::MakeSpan(static_cast<T*>(tensor.data), static_cast<size_t>(rows * cols));
}

absl::Status RefuseForeignExperts(absl::Span<const int32_t> ids, int64_t top_k) {
  const auto found = std::find(ids.begin(), ids.end(), -1);
  if (found == ids.end()) return absl::OkStatus();
  const int64_t slot = found - ids.begin();
  return absl::UnimplementedError(absl::StrCat(
      "routing.ids[", slot / top_k, ", ", slot % top_k,
      "] is -1: experts of other ranks need an engine that owns a shard, which this version does "
      "not have; name experts of this layer"));
}

absl::Status ReadRouting(const moert_routing& c, const moert_step& step, int32_t layer,
                         LayerArguments* arguments) {
  const MoeModelSpec& model = step.state->engine->model();
  const MoeLayerSpec& spec = model.layers[layer];
  const int64_t next = model.layers[(layer + 1) % model.num_layers()].num_experts;
  const int64_t k = spec.routing.top_k;
  RoutedInput& routing = arguments->routing.emplace();
  MOERT_ASSIGN_OR_RETURN(routing.ids,
                         RoutingSpan<const int32_t>("ids", c.ids, MOERT_I32, step.rows, k, false));
  MOERT_ASSIGN_OR_RETURN(routing.weights, RoutingSpan<const float>("weights", c.weights, MOERT_F32,
                                                                   step.rows, k, false));
  MOERT_ASSIGN_OR_RETURN(
      routing.scores,
      RoutingSpan<const float>("scores", c.scores, MOERT_F32, step.rows, spec.num_experts, true));
  MOERT_ASSIGN_OR_RETURN(
      routing.next_scores,
      RoutingSpan<const float>("next_scores", c.next_scores, MOERT_F32, step.rows, next, true));
  MOERT_ASSIGN_OR_RETURN(routing.used_ids, RoutingSpan<int32_t>("used_ids", c.used_ids, MOERT_I32,
                                                                step.rows, k, true));
  MOERT_RETURN_IF_ERROR(RefuseForeignExperts(routing.ids, k));
  routing.idle_before_ns = c.idle_before_ns;
  if (c.times != nullptr) {
    moert_call_times times{};
    MOERT_RETURN_IF_ERROR(ReadStruct(c.times, "routing.times", &times));
    arguments->times = CallTimes{times.step_begin_ns, times.begin_ns,    times.end_ns,
                                 times.route_ns,      times.multiply_ns, times.stalled_ns};
  }
  return absl::OkStatus();
}

absl::Status ReadHiddenStates(const moert_step& step, const moert_tensor* x,
                              const moert_tensor* out, LayerArguments* arguments) {
  if (step.state->simulates) return absl::OkStatus();
  MOERT_REQUIRE_NOT_NULL(x);
  MOERT_REQUIRE_NOT_NULL(out);
  const BackendKind backend = step.state->engine->backend();
  MOERT_RETURN_IF_ERROR(CheckPlace("x", *x, backend));
  MOERT_RETURN_IF_ERROR(CheckPlace("out", *out, backend));
  if (x->dtype != out->dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("out.dtype is ", out->dtype, ", that of x is ", x->dtype));
  }
  arguments->x = {x->data, static_cast<DType>(x->dtype), x->rows, x->cols, x->row_stride};
  arguments->out = {out->data, static_cast<DType>(out->dtype), out->rows, out->cols,
                    out->row_stride};
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LayerArguments> ReadLayerCall(const moert_step* step, int32_t layer,
                                             const moert_tensor* x, const moert_routing* routing,
                                             const moert_tensor* out) {
  MOERT_REQUIRE_NOT_NULL(step);
  const MoeModelSpec& model = step->state->engine->model();
  if (layer < 0 || layer >= model.num_layers()) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer is ", layer, ", legal is 0 to ", model.num_layers() - 1));
  }
  LayerArguments arguments;
  MOERT_RETURN_IF_ERROR(ReadHiddenStates(*step, x, out, &arguments));
  if (routing == nullptr) return arguments;
  moert_routing checked{};
  MOERT_RETURN_IF_ERROR(ReadStruct(routing, "routing", &checked));
  MOERT_RETURN_IF_ERROR(ReadRouting(checked, *step, layer, &arguments));
  return arguments;
}

absl::Status RunLayer(Engine* engine, StepId step, int32_t layer, const LayerArguments& arguments) {
  if (!arguments.routing.has_value()) {
    return engine->Forward(step, layer, arguments.x, arguments.out);
  }
  RoutedInput routing = *arguments.routing;
  if (arguments.times.has_value()) routing.times = &*arguments.times;
  return engine->ForwardRouted(step, layer, arguments.x, routing, arguments.out);
}

}  // namespace moert::capi

using namespace moert::capi;

extern "C" {

void moert_routing_init(moert_routing* routing, uint64_t size) {
  InitStruct(routing, size, moert_routing{});
}

moert_code moert_layer_forward(moert_step* step, int32_t layer, const moert_tensor* x,
                               const moert_routing* routing, const moert_tensor* out,
                               moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_ASSIGN_OR_RETURN(const LayerArguments arguments,
                           ReadLayerCall(step, layer, x, routing, out));
    return RunLayer(step->state->engine.get(), step->id, layer, arguments);
  });
}

}  // extern "C"
