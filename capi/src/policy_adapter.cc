#include "policy_adapter.h"

#include <utility>

#include "base/mutex.h"
#include "guard.h"
#include "policy_seams.h"

namespace moert::capi {
namespace {

Mutex mu;
PoliciesOfStrategies* newest ABSL_GUARDED_BY(mu) = nullptr;  // of all threads

}  // namespace

PoliciesOfStrategies::PoliciesOfStrategies(std::vector<std::shared_ptr<HostPolicies>>* into)
    : thread_(std::this_thread::get_id()), into_(into) {
  const MutexLock lock(&mu);
  older_ = std::exchange(newest, this);
}

PoliciesOfStrategies::~PoliciesOfStrategies() {
  const MutexLock lock(&mu);
  PoliciesOfStrategies** at = &newest;
  while (*at != this) at = &(*at)->older_;
  *at = older_;
}

void PoliciesOfStrategies::Note(std::shared_ptr<HostPolicies> policies) {
  const MutexLock lock(&mu);
  for (PoliciesOfStrategies* p = newest; p != nullptr; p = p->older_) {
    if (p->thread_ == std::this_thread::get_id()) return p->into_->push_back(std::move(policies));
  }
}

absl::Status InstallPolicies(std::shared_ptr<HostPolicies> policies, Strategy* strategy) {
  const moert_policies& c = policies->c;
  if (c.state_bytes < 0) {
    return Illegal("policies.state_bytes is ", c.state_bytes, ", legal is 0 or more");
  }
  policies->counted = false;
  if (absl::Status status = InstallRules(policies, strategy); !status.ok()) return status;
  if (c.routing_rule != nullptr) {
    strategy->routing = AdaptRouting(policies, std::move(strategy->routing));
  }
  if (c.prefetch_rank != nullptr) {
    strategy->prefetch = AdaptPrefetch(policies, std::move(strategy->prefetch));
  }
  if (c.observe != nullptr || c.residency_capacity != nullptr || c.residency_victim != nullptr ||
      c.residency_insert != nullptr || c.residency_evict != nullptr ||
      c.residency_wants_capacity != nullptr) {
    strategy->residency = AdaptResidency(policies, std::move(strategy->residency));
  }
  if (c.precision_initial != nullptr || c.precision_decide != nullptr ||
      c.precision_worth != nullptr || c.precision_transfer != nullptr ||
      c.precision_upgrades != nullptr) {
    strategy->precision = AdaptPrecision(policies, std::move(strategy->precision));
  }
  if (c.placement != nullptr || c.placement_backfills != nullptr) {
    strategy->placement = AdaptPlacement(policies, std::move(strategy->placement));
  }
  return absl::OkStatus();
}

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
