// Carries out a PrefetchRule.
#ifndef MOERT_LIB_PREFETCH_PREFETCH_RULE_H_
#define MOERT_LIB_PREFETCH_PREFETCH_RULE_H_

#include <memory>

#include "moert/policy.h"

namespace moert {

/// A policy that carries out `rule`, which must be valid: kNextGate by CalibratedGate, kTopScore by
/// TopScorePrefetch.
std::unique_ptr<PrefetchPolicy> MakePrefetchPolicy(const PrefetchRule& rule);

/// The inputs that a policy needs from layer calls, by its rule or its traits. Null: none.
bool WantsNextGate(const PrefetchPolicy* policy);
bool WantsResidentForward(const PrefetchPolicy* policy);

}  // namespace moert

#endif  // MOERT_LIB_PREFETCH_PREFETCH_RULE_H_
