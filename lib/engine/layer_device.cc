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

void LayerRunner::CollectRoutings() {
  PolicyContext context;
  while (parts_.device->TakeRouting(&context, &late_routing_)) {
    double mass = 0;
    for (const float w : late_routing_.weights) mass += w;
    parts_.router->CountOwnChoice(late_routing_.tokens * late_routing_.top_k, mass);
    context.model = parts_.model;
    parts_.residency->Observe(LayerEvent::Routed(context, late_routing_.view()));
    if (parts_.versions != nullptr) parts_.versions->OnRouting(context, late_routing_.view());
    parts_.scheduler->CountAnswered(context.layer, late_routing_);
  }
}

void LayerRunner::CollectLate(PolicyContext context) {
  CollectRoutings();
  if (!selected_) return;
  selected_ = false;
  parts_.store->BeginLayerCall();
  const SelectionCount* row = selections_.data();
  for (context.layer = 0; context.layer < parts_.model->num_layers(); ++context.layer) {
    const MoeLayerSpec& spec = parts_.model->layers[context.layer];
    const SelectionCount& all = row[spec.num_experts];
    late_routing_.counts.assign(spec.num_experts, 0);
    double mass = 0;
    for (int32_t e = 0; e < spec.num_experts; ++e, ++row) {
      late_routing_.counts[e] = static_cast<int32_t>(row->slots);
      mass += row->mass;
      if (row->calls == 0) continue;
      parts_.scheduler->CountAnswered({context.layer, e}, row->slots, row->calls, row->mass);
    }
    ++row;  // the layer's own
    if (all.calls == 0) continue;
    parts_.router->CountOwnChoice(all.slots, mass);
    RoutingView view;  // of the counts alone
    view.top_k = spec.routing.top_k;
    view.tokens = all.slots / view.top_k / all.calls;
    view.counts = late_routing_.counts;
    if (parts_.versions != nullptr) parts_.versions->OnRouting(context, view);
  }
}

}  // namespace moert
