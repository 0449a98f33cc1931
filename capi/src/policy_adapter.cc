#include "policy_adapter.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "policy_seams.h"
#include "struct_io.h"

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
    return absl::InvalidArgumentError(
        absl::StrCat("policies.state_bytes is ", c.state_bytes, ", legal is 0 or more"));
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

}  // namespace moert::capi

extern "C" void moert_policies_init(moert_policies* policies, uint64_t size) {
  moert::capi::InitStruct(policies, size, moert_policies{});
}
