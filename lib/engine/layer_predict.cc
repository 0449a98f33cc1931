// Tells the prefetcher about the next layer: scores of its gate on this layer's input, or on the
// input that resident experts and the host's attention predict (importance paper Sec. 5.2).
#include <algorithm>

#include "engine/layer.h"

namespace moert {

void LayerRunner::Predict(const LayerCall& call, bool given) {
  if (parts_.prefetcher->wants_next_gate(call.context.phase)) {
    const bool last = call.context.layer + 1 == parts_.model->num_layers();
    if (!routing_.next_scores.empty()) {
      ++(forward_predicted_ ? stats_.predictions_resident_forward : stats_.predictions_next_gate);
      stats_.predictions_missing = 0;
    } else if (given && !last) {
      ++stats_.predictions_missing;
    }
  }
  parts_.prefetcher->Predict(call.context, routing_, parts_.clock->now_ns(), forward_predicted_);
}

bool LayerRunner::WantsForward(const LayerCall& call) const {
  if (call.fetch || call.predict_next == nullptr || *call.predict_next == nullptr) return false;
  const PolicyContext& context = call.context;
  if (context.phase != Phase::kDecode || forwarder_ == nullptr ||
      context.layer + 1 == parts_.model->num_layers() ||
      !parts_.prefetcher->wants_resident_forward(context.phase)) {
    return false;
  }
  // The prediction costs the host an attention, so it is not made if the next layer misses nothing.
  const LayerResidency next = parts_.store->Layer(context.layer + 1);
  return std::any_of(next.resident.begin(), next.resident.end(), [](uint8_t r) { return r == 0; });
}

absl::Status LayerRunner::PredictForward(const LayerCall& call,
                                         absl::Span<const int32_t> computed) {
  const int64_t begin_ns = parts_.clock->now_ns();
  computed_.assign(routing_.num_experts, 0);
  for (const int32_t e : computed) computed_[e] = 1;
  const PartialRows rows = forwarder_->PartialOutput(call.exec, routing_, computed_);
  try {
    forward_predicted_ = (*call.predict_next)({call.context.layer, rows.output, rows.next_input});
  } catch (...) {  // thrown by the host
    forward_predicted_ = false;
  }
  if (!forward_predicted_) ++stats_.policy_fallbacks;
  parts_.prefetcher->AskedHost(parts_.clock->now_ns() - begin_ns);
  // Traces record the gate's scores on this call's input, which do not depend on residency.
  if (parts_.trace != nullptr) gate_scores_.swap(routing_.next_scores);
  const absl::Status status =
      parts_.executor->ScoreNext(call.exec, forward_predicted_, &routing_.next_scores);
  Span(call, TimelineTrack::kLayers, "predict the next layer's input", begin_ns);
  return status;
}

}  // namespace moert
