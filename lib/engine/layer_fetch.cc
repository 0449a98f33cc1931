// Layer calls in which the host multiplies: the routing is given, experts are loaded and stay
// pinned.
#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "engine/layer.h"
#include "route/grouping.h"
#include "store/lent_blocks.h"

namespace moert {

absl::Status LayerRunner::Fetch(LayerCall call, const FetchInput& input, Pins* pins,
                                const int32_t** device_slots) {
  call.fetch = true;
  call.context.now_ns = parts_.clock->now_ns();
  const bool there = input.place == Place::kDevice;
  GivenRouting given;
  if (there) {
    given = {input.ids.data(),
             input.weights.empty() ? nullptr : input.weights.data(),
             input.slot_ids.empty() ? nullptr : input.slot_ids.data(),
             static_cast<int64_t>(input.ids.size()),
             input.cpu_rows,
             input.any_slot};
  }
  parts_.store->BeginLayerCall();
  parts_.store->Pump();
  if (!call.exec.capturing) CollectRoutings();
  if (Serves(call.context.layer, input)) {
    MOERT_ASSIGN_OR_RETURN(*device_slots,
                           device_cache_->FetchServed(call.exec, given, parts_.store));
    if (*device_slots != nullptr) {
      stats_.predictions_missing = 0;  // the device predicts
      return absl::OkStatus();
    }
  }
  if (call.exec.capturing && lent()) return NotCaptured(call.context.layer);
  MOERT_RETURN_IF_ERROR(TakeBack());
  const bool resident = there && runs_resident_ && NothingMissing(call.context.layer);
  if (call.exec.capturing && !resident) return NotCaptured(call.context.layer);
  if (resident) {
    PinLayer(call.context.layer, pins);
  } else if (there) {
    FetchInput brought = input;
    MOERT_RETURN_IF_ERROR(device_->BringGiven(call.exec, given, &given_ids_, &given_weights_));
    brought.ids = given_ids_;
    brought.weights = given_weights_;
    brought.slot_ids = {};
    MOERT_RETURN_IF_ERROR(BringFetched(call, brought, pins));
  } else {
    MOERT_RETURN_IF_ERROR(BringFetched(call, input, pins));
  }
  MOERT_ASSIGN_OR_RETURN(
      *device_slots,
      device_->PlaceSlots(call.exec, given, resident ? &call.context : nullptr, *parts_.store));
  return absl::OkStatus();
}

absl::Status LayerRunner::NotCaptured(int layer) {
  return FailedPrecondition(
      "the stream is being captured: the device cannot serve this fetch of layer {} alone. It can "
      "if its slots hold every expert that the call names, and if the same step was run once "
      "outside of a capture, without other fetches behind it",
      layer);
}

void LayerRunner::ServeFetches() {
  // A policy that substitutes experts needs the host's scores, so the device serves fetches only
  // without a routing policy.
  serves_fetches_ = parts_.strategy->routing == nullptr && CheckRules().ok() &&
                    device_cache_->ServeFetches(*parts_.store).ok();
}

bool LayerRunner::Serves(int layer, const FetchInput& input) const {
  if (!serves_fetches_ || input.place != Place::kDevice) return false;
  const VersionedStore& store = *parts_.store;
  const int64_t slots = lent() ? device_cache_->lent_slots(layer) : -1;
  const bool shares =
      input.cpu_rows.data != nullptr && input.cpu_rows.rows <= device_cache_->most_cpu_rows();
  const int64_t wanted = shares ? 1 : static_cast<int64_t>(input.ids.size());
  return ServesFetch(wanted, slots, store.capacity(layer), store.LeastLent(layer));
}

void LayerRunner::PinLayer(int layer, Pins* pins) {
  const int experts = parts_.model->layers[layer].num_experts;
  pins->Reserve(static_cast<size_t>(experts));
  for (int32_t e = 0; e < experts; ++e) pins->Add({layer, e});
}

absl::Status LayerRunner::BringFetched(const LayerCall& call, const FetchInput& input, Pins* pins) {
  const absl::Cleanup unpin = [&] {  // after a failure batch_ still has pinned experts
    for (const int32_t e : batch_) parts_.store->Unpin({call.context.layer, e});
    batch_.clear();
  };
  parts_.charges->Begin(nullptr);
  times_ = {call.step_begin_ns, call.context.now_ns};
  const int64_t stalled_ns = stats_.stalled_ns();
  MOERT_RETURN_IF_ERROR(SetFetchRouting(call, input));
  MOERT_RETURN_IF_ERROR(CheckRoom(call.context.layer));
  Plan(call);
  batch_.swap(plan_.ready);
  plan_.load.insert(plan_.load.end(), plan_.cpu.begin(), plan_.cpu.end());
  plan_.cpu.clear();
  times_.route_ns = parts_.clock->now_ns() - times_.begin_ns;
  MOERT_RETURN_IF_ERROR(BringExperts(call));
  pins->Reserve(batch_.size());
  for (const int32_t e : batch_) pins->Adopt({call.context.layer, e});
  batch_.clear();
  EndCacheUse(call);
  parts_.charges->Rest(call.context.phase, call.exec.tokens);
  EndCall(call, stalled_ns);
  return absl::OkStatus();
}

absl::Status LayerRunner::SetFetchRouting(const LayerCall& call, const FetchInput& input) {
  const int layer = call.context.layer;
  const int64_t tokens = call.exec.tokens;
  const int experts = parts_.model->layers[layer].num_experts;
  const int next = (layer + 1) % parts_.model->num_layers();
  const int next_experts = parts_.model->layers[next].num_experts;
  const int64_t pairs = static_cast<int64_t>(input.ids.size());
  if (pairs == 0 || pairs % tokens != 0) {
    return InvalidArgument("ids of layer {}: {} values; takes the same number for each of {} rows",
                           layer, pairs, tokens);
  }
  const auto check = [&](const char* what, size_t size, int64_t wanted) {
    if (size == 0 || static_cast<int64_t>(size) == wanted) return absl::OkStatus();
    return InvalidArgument("{} of layer {}: {} values; takes {} or none", what, layer, size,
                           wanted);
  };
  MOERT_RETURN_IF_ERROR(check("weights", input.weights.size(), pairs));
  MOERT_RETURN_IF_ERROR(check("slot_ids", input.slot_ids.size(), pairs));
  MOERT_RETURN_IF_ERROR(check("scores", input.scores.size(), tokens * experts));
  MOERT_RETURN_IF_ERROR(check("next_scores", input.next_scores.size(), tokens * next_experts));
  for (int64_t i = 0; i < pairs; ++i) {
    if (input.ids[i] >= -1 && input.ids[i] < experts) continue;
    return InvalidArgument(
        "ids of layer {}, token {}: expert {} does not exist; legal are [0, {}) and -1: none",
        layer, i * tokens / pairs, input.ids[i], experts);
  }
  RoutingResult& r = routing_;
  r.tokens = tokens;
  r.top_k = static_cast<int>(pairs / tokens);
  r.num_experts = experts;
  r.ids.assign(input.ids.begin(), input.ids.end());
  r.weights.assign(input.weights.begin(), input.weights.end());
  if (input.weights.empty()) r.weights.assign(input.ids.size(), 1.0f / static_cast<float>(r.top_k));
  r.scores.assign(input.scores.begin(), input.scores.end());
  r.next_scores.assign(input.next_scores.begin(), input.next_scores.end());
  GroupByExpert(&r);
  NoteOwnChoice(parts_.store->Layer(layer), &r);
  if (!device_->present()) MOERT_RETURN_IF_ERROR(parts_.executor->SetRouting(call.exec, r));
  const bool gate = !parts_.model->layers[next].routing.external();
  if (r.next_scores.empty() && call.exec.hidden.data != nullptr && next > 0 && gate &&
      WantsNextGate(call)) {
    MOERT_RETURN_IF_ERROR(parts_.executor->ScoreNext(call.exec, false, &r.next_scores));
  }
  parts_.charges->Routed(layer, r, !r.next_scores.empty());
  parts_.router->Count(r);
  return absl::OkStatus();
}

absl::Status LayerRunner::CheckRoom(int layer) const {
  const int64_t wanted = std::count_if(routing_.counts.begin(), routing_.counts.end(),
                                       [](int32_t count) { return count > 0; });
  if (wanted <= parts_.store->capacity(layer)) return absl::OkStatus();
  const int64_t most = parts_.store->RoomFor(layer, routing_.counts);
  return wanted <= most ? absl::OkStatus() : TooMany(layer, wanted, most);
}

absl::Status LayerRunner::TooMany(int layer, int64_t wanted, int64_t most) const {
  return ResourceExhausted(
      "layer {}: {} distinct experts are asked for, {} fit beside what is pinned: ask for at most "
      "{} at once and release them before the next, or give a larger budget",
      layer, wanted, most, most);
}

}  // namespace moert
