// Accounts for calls that ran on a device without the host, whose routing is known only after they
// have returned.
#include "engine/layer.h"

namespace moert {

void LayerRunner::CollectRoutings() {
  PolicyContext context;
  while (device_->TakeRouting(&context, &late_routing_)) {
    double mass = 0;
    for (const float w : late_routing_.weights) mass += w;
    parts_.router->CountOwnChoice(late_routing_.tokens * late_routing_.top_k, mass);
    context.model = parts_.model;
    parts_.residency->Observe(LayerEvent::Routed(context, late_routing_.view()));
    if (parts_.versions != nullptr) parts_.versions->OnRouting(context, late_routing_.view());
    parts_.scheduler->CountAnswered(context.layer, late_routing_);
  }
}

void LayerRunner::TakeSelections() {
  selected_ = selected_ || device_->TakeSelections(&selections_);
  ServedCount added;
  if (!device_cache_->TakeServed(&added)) return;
  parts_.store->CountServed(added);
  parts_.router->CountSubstituted(added.substituted, added.mass_substituted);
  parts_.router->CountOwnChoice(/*slots=*/0, added.mass_lost);
  parts_.prefetcher->CountServed(added);
  parts_.scheduler->CountServed(added);
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
      if (row->calls == 0 || serves_misses_) continue;
      parts_.scheduler->CountAnswered({context.layer, e}, row->slots, row->calls, row->mass);
    }
    ++row;  // skips the layer's own row
    if (all.calls == 0) continue;
    parts_.router->CountOwnChoice(all.slots, mass);
    RoutingView view;  // has only the counts
    view.top_k = spec.routing.top_k;
    view.tokens = all.slots / view.top_k / all.calls;
    view.counts = late_routing_.counts;
    if (parts_.versions != nullptr) parts_.versions->OnRouting(context, view);
  }
}

}  // namespace moert
