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

absl::Status ReadRouting(const moert_routing& c, const moert_step& step, int32_t layer,
                         LayerArguments* arguments) {
  const MoeModelSpec& model = step.state->engine->model();
  const MoeLayerSpec& spec = model.layers[layer];
  const int64_t next = model.layers[(layer + 1) % model.num_layers()].num_experts;
  const int64_t k = spec.routing.top_k;
  RoutedInput& routing = arguments->routing.emplace();
  const moert_place place = c.ids.place == MOERT_DEVICE ? MOERT_DEVICE : MOERT_HOST;
  if (place == MOERT_DEVICE) {
    MOERT_RETURN_IF_ERROR(CheckPlace("routing.ids", c.ids, step.state->engine->backend()));
    routing.place = Place::kDevice;
  }
  MOERT_ASSIGN_OR_RETURN(routing.ids, TensorSpan<const int32_t>("routing.ids", c.ids, MOERT_I32,
                                                                step.rows, k, false, place));
  MOERT_ASSIGN_OR_RETURN(
      routing.weights,
      TensorSpan<const float>("routing.weights", c.weights, MOERT_F32, step.rows, k, false, place));
  MOERT_ASSIGN_OR_RETURN(routing.scores,
                         TensorSpan<const float>("routing.scores", c.scores, MOERT_F32, step.rows,
                                                 spec.num_experts, true));
  MOERT_ASSIGN_OR_RETURN(routing.next_scores,
                         TensorSpan<const float>("routing.next_scores", c.next_scores, MOERT_F32,
                                                 step.rows, next, true));
  MOERT_ASSIGN_OR_RETURN(
      routing.used_ids,
      TensorSpan<int32_t>("routing.used_ids", c.used_ids, MOERT_I32, step.rows, k, true, place));
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
  if (x->dtype != MOERT_F32 && x->dtype != MOERT_BF16 && x->dtype != MOERT_F16) {
    return Illegal("x.dtype is ", x->dtype, ", legal is MOERT_F32, MOERT_BF16 or MOERT_F16");
  }
  if (x->dtype != out->dtype) {
    return Illegal("out.dtype is ", out->dtype, ", that of x is ", x->dtype);
  }
  arguments->x = {x->data, static_cast<DType>(x->dtype), x->rows, x->cols, x->row_stride};
  arguments->out = {out->data, static_cast<DType>(out->dtype), out->rows, out->cols,
                    out->row_stride};
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPlace(const char* name, const moert_tensor& tensor, BackendKind backend) {
  const moert_place legal = backend == BackendKind::kCuda ? MOERT_DEVICE : MOERT_HOST;
  if (tensor.place == legal) return absl::OkStatus();
  return Illegal(name, ".place is ", tensor.place, " (", PlaceName(tensor.place), "), the ",
                 BackendName(backend), " backend takes ", PlaceName(legal));
}

absl::StatusOr<LayerArguments> ReadLayerCall(const moert_step* step, int32_t layer,
                                             const moert_tensor* x, const moert_routing* routing,
                                             const moert_tensor* out) {
  MOERT_REQUIRE_NOT_NULL(step);
  const MoeModelSpec& model = step->state->engine->model();
  MOERT_RETURN_IF_ERROR(CheckRange("layer", layer, 0, model.num_layers() - 1));
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
