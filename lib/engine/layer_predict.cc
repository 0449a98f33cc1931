// What a layer call tells the prefetcher of layers to come: scores on the input that resident
// experts and the host's attention predict (importance paper Sec. 5.2).
#include <algorithm>

#include "base/status_macros.h"
#include "engine/layer.h"

namespace moert {

bool LayerRunner::WantsForward(const LayerCall& call) const {
  if (call.predict_next == nullptr || *call.predict_next == nullptr) return false;
  if (call.context.phase != Phase::kDecode || parts_.simulate || parts_.device != nullptr ||
      partial_.size() == 0 || call.context.layer + 1 == parts_.model->num_layers() ||
      !parts_.prefetcher->wants_resident_forward(call.context.phase)) {
    return false;
  }
  // It costs the host an attention: not for a layer that has everything.
  const LayerResidency next = parts_.store->Layer(call.context.layer + 1);
  return std::any_of(next.resident.begin(), next.resident.end(), [](uint8_t r) { return r == 0; });
}

absl::Status LayerRunner::PredictForward(const LayerCall& call,
                                         absl::Span<const int32_t> computed) {
  const int layer = call.context.layer;
  const int64_t tokens = call.tokens;
  const int64_t hidden = parts_.model->layers[layer].hidden;
  const int64_t next_hidden = parts_.model->layers[layer + 1].hidden;
  const int k = routing_.top_k;
  const int64_t begin_ns = parts_.clock->now_ns();
  computed_.assign(routing_.num_experts, 0);
  for (const int32_t e : computed) computed_[e] = 1;
  for (int64_t t = 0; t < tokens; ++t) {
    float* row = partial_.data() + t * hidden;
    const bool shared = parts_.shared_records[layer] != nullptr;
    const float shared_weight = shared ? SharedWeight(call, t) : 0;
    const float* of_shared = slots_.data() + (tokens * k + t) * hidden;
    for (int64_t i = 0; i < hidden; ++i) row[i] = shared ? shared_weight * of_shared[i] : 0;
    for (int j = 0; j < k; ++j) {
      if (!computed_[routing_.ids[t * k + j]]) continue;
      const float weight = routing_.weights[t * k + j];
      const float* slot = slots_.data() + (t * k + j) * hidden;
      for (int64_t i = 0; i < hidden; ++i) row[i] += weight * slot[i];
    }
  }
  try {
    forward_predicted_ =
        (*call.predict_next)({layer,
                              {partial_.data(), DType::kF32, tokens, hidden, hidden},
                              {next_input_.data(), DType::kF32, tokens, next_hidden, next_hidden}});
  } catch (...) {  // the host's
    forward_predicted_ = false;
  }
  if (!forward_predicted_) ++stats_.policy_fallbacks;
  const absl::Status status = parts_.router->Score(
      layer + 1, forward_predicted_ ? next_input_.data() : call.x, tokens, &routing_.next_scores);
  Span(call, TimelineTrack::kLayers, "predict the next layer's input", begin_ns);
  return status;
}

void LayerRunner::CountPrediction(const LayerCall& call) {
  if (!parts_.prefetcher->wants_next_gate(call.context.phase) || routing_.next_scores.empty())
    return;
  ++(forward_predicted_ ? stats_.predictions_resident_forward : stats_.predictions_next_gate);
}

}  // namespace moert
