#include "prefetch/prefetch_rule.h"

#include <optional>

#include "prefetch/calibrated_gate.h"
#include "prefetch/top_score_prefetch.h"

namespace moert {

std::unique_ptr<PrefetchPolicy> MakePrefetchPolicy(const PrefetchRule& rule) {
  if (rule.kind == PrefetchRuleKind::kTopScore) return MakeTopScorePrefetch(rule);
  return MakeCalibratedGate(rule);
}

bool WantsNextGate(const PrefetchPolicy* policy) {
  if (policy == nullptr) return false;
  return policy->rule().has_value() || policy->traits().next_gate;
}

bool WantsResidentForward(const PrefetchPolicy* policy) {
  if (policy == nullptr) return false;
  const std::optional<PrefetchRule> rule = policy->rule();
  return rule.has_value() ? rule->resident_forward : policy->traits().resident_forward;
}

}  // namespace moert
