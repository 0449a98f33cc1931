// Layer calls on a device: routing there, calls that miss nothing, and calls that are served by
// another thread than the host's.
#include "base/status_macros.h"
#include "engine/layer.h"
#include "plan/transfer_version.h"

namespace moert {

absl::Status LayerRunner::RouteOnDevice(const LayerCall& call, const RoutingRule& rule,
                                        const LayerResidency& residency, bool next_gate) {
  const int layer = call.context.layer;
  const bool own_choice = rule.kind == RoutingRuleKind::kTopK;
  const RoutingOverride ruled{rule, call.context.request_ids, parts_.store};
  MOERT_RETURN_IF_ERROR(parts_.device->Route(
      call.device, own_choice ? nullptr : &ruled, next_gate,
      [&](const float* x, RoutingResult* routing) {
        return parts_.router->Route(layer, x, call.tokens, rule, residency,
                                    call.context.request_ids, next_gate, routing);
      },
      &routing_));
  if (own_choice) Router::NoteOwnChoice(residency, &routing_);
  return absl::OkStatus();
}

absl::StatusOr<bool> LayerRunner::TryResident(const LayerCall& call) {
  if (!parts_.device->Capturing(call.device.stream)) CollectRoutings();
  const LayerResidency residency = parts_.store->Layer(call.context.layer);
  const bool observed = parts_.trace != nullptr || parts_.strategy->routing != nullptr ||
                        parts_.strategy->prefetch != nullptr || parts_.virtual_clock != nullptr ||
                        call.routed != nullptr;
  if (observed || !parts_.device->CanRunResident(call.context.layer)) return false;
  for (const uint8_t usable : residency.usable) {
    if (!usable) return false;
  }
  MOERT_RETURN_IF_ERROR(parts_.device->RunResident(call.device, call.context, *parts_.store));
  return true;
}

bool LayerRunner::CountLateUse(ExpertKey key, int64_t slots, int64_t calls) {
  EngineStats& stats = *parts_.stats;
  stats.lookups += calls;
  const bool prefetched = parts_.store->Touch(key, static_cast<int32_t>(slots / calls));
  stats.prefetch_useful += prefetched;
  if (parts_.store->Latest(key).version > parts_.store->intended(key)) {
    stats.low_answers += calls;
    return true;
  }
  stats.hits_prefetched += prefetched;
  stats.hits_resident += calls - prefetched;
  return false;
}

void LayerRunner::CollectRoutings() {
  PolicyContext context;
  while (parts_.device->TakeRouting(&context, &late_routing_)) {
    EngineStats& stats = *parts_.stats;
    stats.slots += late_routing_.tokens * late_routing_.top_k;
    for (const float w : late_routing_.weights) stats.mass += w;
    context.model = parts_.model;
    parts_.residency->OnRouting(context, late_routing_.view());
    if (parts_.versions != nullptr) parts_.versions->OnRouting(context, late_routing_.view());
    computed_.assign(late_routing_.num_experts, 0);  // here: answered low
    for (int32_t e = 0; e < late_routing_.num_experts; ++e) {
      if (late_routing_.counts[e] == 0) continue;
      computed_[e] = CountLateUse({context.layer, e}, late_routing_.counts[e], 1);
    }
    const auto [slots_low, mass_low] = late_routing_.ShareOf(computed_);
    stats.slots_low += slots_low;
    stats.mass_low += mass_low;
  }
}

void LayerRunner::CollectLate(PolicyContext context) {
  CollectRoutings();
  if (!selected_) return;
  selected_ = false;
  parts_.store->BeginLayerCall();
  EngineStats& stats = *parts_.stats;
  const SelectionCount* row = selections_.data();
  for (context.layer = 0; context.layer < parts_.model->num_layers(); ++context.layer) {
    const MoeLayerSpec& spec = parts_.model->layers[context.layer];
    const SelectionCount& all = row[spec.num_experts];
    late_routing_.counts.assign(spec.num_experts, 0);
    for (int32_t e = 0; e < spec.num_experts; ++e, ++row) {
      late_routing_.counts[e] = static_cast<int32_t>(row->slots);
      stats.mass += row->mass;
      if (row->calls == 0 || !CountLateUse({context.layer, e}, row->slots, row->calls)) continue;
      stats.slots_low += row->slots;
      stats.mass_low += row->mass;
    }
    ++row;  // the layer's own
    if (all.calls == 0) continue;
    stats.slots += all.slots;
    RoutingView view;  // of the counts alone
    view.top_k = spec.routing.top_k;
    view.tokens = all.slots / view.top_k / all.calls;
    view.counts = late_routing_.counts;
    if (parts_.versions != nullptr) parts_.versions->OnRouting(context, view);
  }
}

absl::Status LayerRunner::Serve(LayerCall call, bool ruled, RoutingResult* routing) {
  // The device multiplies those it found already: nobody may evict them before the plan pins them.
  const std::vector<int32_t> counts = routing->counts;
  const auto for_each_used = [&](auto&& what) {
    for (int32_t e = 0; e < std::ssize(counts); ++e) {
      if (counts[e] > 0) what(ExpertKey{call.context.layer, e});
    }
  };
  for_each_used([&](ExpertKey key) { parts_.store->Pin(key); });
  FinishOpen();
  recorded_ = nullptr;
  call.context.now_ns = parts_.clock->now_ns();
  times_ = {call.step_begin_ns, call.context.now_ns};
  parts_.store->BeginLayerCall();
  parts_.store->Pump();
  std::swap(routing_, *routing);
  if (!ruled) Router::NoteOwnChoice(parts_.store->Layer(call.context.layer), &routing_);
  CountRouting();
  Plan(call);
  for_each_used([&](ExpertKey key) { parts_.store->Unpin(key); });
  open_call_ = call;
  open_pins_ = plan_.ready;
  any_open_ = true;
  absl::Status status;
  if (!plan_.cpu.empty()) {
    status = parts_.device->BeginCpu(call.device, routing_, plan_.cpu, parts_.best_version);
  }
  const absl::Status fetched = FetchAll(call);
  status.Update(fetched);
  if (!plan_.cpu.empty()) status.Update(JoinCpu(call, 0));
  // While the call waits and all it uses is pinned: nobody reads who leaves for it.
  if (status.ok()) BackfillAfterCpu(call);
  return status;
}

absl::Status LayerRunner::FetchAll(const LayerCall& call) {
  const PolicyContext& context = call.context;
  wave_.clear();
  flying_.clear();
  auto next = plan_.load.begin();
  bool predicted = false;
  absl::Status failure;
  while (true) {
    if (failure.ok() && call.cancelled->load(std::memory_order_relaxed)) {
      failure = absl::CancelledError("the step was cancelled");
    }
    while (failure.ok() && next != plan_.load.end()) {
      const ExpertKey key{context.layer, *next};
      const int version =
          TransferVersion(Precision(), context, key, routing_.counts, /*prefetch=*/false,
                          parts_.store->num_versions(), parts_.stats);
      if (!parts_.store->StartLoad(key, version, LoadReason::kDemand, context)) break;
      if (!Claim(call, *next)) flying_.push_back(*next);
      ++next;
    }
    const bool all_queued = next == plan_.load.end();
    if (all_queued && !predicted) {
      CountPrediction(call);
      parts_.prefetcher->Predict(context, routing_, parts_.clock->now_ns());
      predicted = true;
    }
    // Claimed experts stay pinned: the device has yet to read them.
    open_pins_.insert(open_pins_.end(), wave_.begin(), wave_.end());
    wave_.clear();
    if (flying_.empty() && (all_queued || !failure.ok())) return failure;
    const int64_t begin_ns = parts_.clock->now_ns();
    if (!parts_.store->Wait()) {
      return absl::ResourceExhaustedError("no block of the budget is free for a missing expert");
    }
    failure.Update(CollectArrived(call));
    CountStall(call, begin_ns);
  }
}

void LayerRunner::FinishOpen() {
  if (!any_open_) return;
  any_open_ = false;
  const PolicyContext& context = open_call_.context;
  for (const int32_t e : open_pins_) parts_.store->Unpin({context.layer, e});
  open_pins_.clear();
  parts_.store->EndLayerCall(context);
  Upgrade(open_call_);
  parts_.prefetcher->EndCall(context, open_call_.tokens, parts_.clock->now_ns());
}

}  // namespace moert
