// Carries out a PlacementRule.
#ifndef MOERT_LIB_PLAN_PLACEMENT_RULE_H_
#define MOERT_LIB_PLAN_PLACEMENT_RULE_H_

#include <memory>

#include "moert/policy.h"

namespace moert {

/// Carries a rule out, which is valid. In decode, misses whose routing weight is low are answered
/// low (rules/low_answers.h); the others are shared between the link and a CPU (plan/balancer.h).
/// Where no CPU stands beside the fast tier they are loaded.
std::unique_ptr<PlacementPolicy> MakePlacementPolicy(const PlacementRule& rule);

/// By its rule or its traits. Null: every miss is loaded.
Promise PromiseOf(const PlacementPolicy* policy);
double MaxLowShare(const PlacementPolicy* policy);
bool Backfills(const PlacementPolicy* policy);

}  // namespace moert

#endif  // MOERT_LIB_PLAN_PLACEMENT_RULE_H_
