#include "host/engine_runner.h"

#include "util/status_macros.h"

namespace moert::host {

absl::Status EngineRunner::BeginStep(StepPhase phase, const StepRows& rows) {
  StepInfo info;
  info.phase = phase == StepPhase::kPrefill ? Phase::kPrefill : Phase::kDecode;
  info.rows = rows.count();
  info.request_ids = rows.request_ids;
  info.token_ids = rows.tokens;
  if (predict_ != nullptr) {
    info.predict_next = [predict = predict_](const PartialOutput& partial) {
      return predict(partial.layer, static_cast<const float*>(partial.output.data),
                     static_cast<float*>(partial.next_input.data));
    };
  }
  MOERT_ASSIGN_OR_RETURN(step_, engine_->Begin(info));
  return absl::OkStatus();
}

absl::Status EngineRunner::Forward(int moe_layer, const float* x, int64_t rows, float* out) {
  const int64_t hidden = engine_->model().layers[moe_layer].hidden;
  return step_->Forward(moe_layer, {x, DType::kF32, rows, hidden, hidden},
                        {out, DType::kF32, rows, hidden, hidden});
}

absl::Status EngineRunner::ForwardRouted(int moe_layer, const float* x, int64_t rows,
                                         const MoeRouting& routing, float* out) {
  const int64_t hidden = engine_->model().layers[moe_layer].hidden;
  RoutedInput input;
  input.ids = routing.ids;
  input.weights = routing.weights;
  input.scores = routing.scores;
  return step_->ForwardRouted(moe_layer, {x, DType::kF32, rows, hidden, hidden}, input,
                              {out, DType::kF32, rows, hidden, hidden});
}

absl::Status EngineRunner::EndStep() { return step_->End(); }

}  // namespace moert::host
