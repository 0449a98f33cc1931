#include "policy_views.h"

namespace moert::capi {

moert_policy_context ToC(const PolicyContext& context) {
  moert_policy_context c{};
  c.struct_size = sizeof(c);
  c.step = context.step;
  c.now_ns = context.now_ns;
  c.request_ids = context.request_ids.empty() ? nullptr : context.request_ids.data();
  c.num_request_ids = static_cast<int64_t>(context.request_ids.size());
  c.layer = context.layer;
  c.phase = static_cast<moert_phase>(context.phase);
  return c;
}

moert_routing_view ToC(const RoutingView& routing) {
  moert_routing_view c{};
  c.struct_size = sizeof(c);
  c.tokens = routing.tokens;
  c.ids = routing.ids.data();
  c.weights = routing.weights.data();
  c.scores = routing.scores.empty() ? nullptr : routing.scores.data();
  c.counts = routing.counts.data();
  c.top_k = routing.top_k;
  c.num_experts = static_cast<int32_t>(routing.counts.size());
  return c;
}

moert_precision_snapshot ToC(const PrecisionSnapshot& snapshot,
                             const moert_policy_context* context) {
  moert_precision_snapshot c{};
  c.struct_size = sizeof(c);
  c.context = context;
  c.selections = snapshot.selections.data();
  c.high = snapshot.high.data();
  c.total_experts = static_cast<int64_t>(snapshot.selections.size());
  c.high_capacity = snapshot.high_capacity.data();
  c.num_layers = static_cast<int64_t>(snapshot.high_capacity.size());
  return c;
}

}  // namespace moert::capi
