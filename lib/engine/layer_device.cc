// Layer calls on a device: routing there, and calls that miss nothing.
#include "base/status_macros.h"
#include "engine/layer.h"

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

}  // namespace moert
