// The expert-cache router (importance paper Sec. 5.1, Algorithm 1): experts that matter are kept,
// low-score ones that would have to be fetched are replaced by inactive ones that are at hand.
//
// For a token with scores s, E eligible experts in descending score (of equals the lower index
// first) and beta the score of rank k + 1:
//   active       the k experts the model's own rule chose;
//   top-score    active with s > (1 + alpha) beta; over the batch they form the set C;
//   at hand      resident, or in C;
//   replaceable  active, not top-score, not at hand;
//   substitute   not active, (1 - alpha) beta <= s <= beta, at hand.
// The worst-scored replaceable experts make way for the best-scored substitutes, as many as there
// are of both; replaceable experts that are left are fetched. The paper's listing differs from its
// prose in two places, where the prose is followed: rank k + 1 is not an active, and low-score
// actives that are at hand keep their places.
//
// The second pass (Sec. 5.4, for use with a balancer) then groups what is left to be fetched: a
// replaceable expert x makes way for a substitute-by-score y that is not at hand but that other
// tokens force to be fetched, if at least as many tokens use y as use x. Tokens go in order, the
// y with most tokens first. An expert that was chosen so is not left by its other users, so every y
// is really fetched for somebody else.
//
// Scores are the router's over all experts (model.h); for sigmoid routing the unbiased sigmoid.
// Eligible are the experts of the groups that the token's group-limited selection left. fp32.
#ifndef MOERT_LIB_ROUTE_EXPERT_CACHE_RULE_H_
#define MOERT_LIB_ROUTE_EXPERT_CACHE_RULE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "moert/model.h"
#include "moert/policy.h"
#include "route/substitution_ledger.h"

namespace moert {

/// One layer call as the model routed it. T tokens, E experts.
struct ExpertCacheCall {
  const RoutingSpec* spec = nullptr;
  int num_experts = 0;
  int64_t tokens = 0;
  absl::Span<const float> scores;         // [T, E]
  absl::Span<const float> bias;           // [E] or empty
  absl::Span<const uint8_t> resident;     // [E]
  absl::Span<const int64_t> request_ids;  // [T], or empty: all rows are one request
  absl::Span<int32_t> ids;    // [T, k]: a substitute takes the slot of whom it displaces
  absl::Span<float> weights;  // [T, k]
};

struct ExpertCacheOutcome {
  int64_t substituted = 0;
  double mass_substituted = 0;     // what the model gave the displaced experts
  std::vector<uint8_t> top_score;  // [E]: the set C
};

/// OK, or why this routing has no score that the rule could go by (sparsemixer).
absl::Status CheckExpertCacheRule(const RoutingSpec& spec);

/// Executes `rule` (kExpertCache) on the call. alpha = 0 changes nothing, ties included. The rule's
/// caps hold for every request over its lifetime: a substitution that would exceed one is not made.
/// `ledger` keeps the requests' accounts.
absl::Status ApplyExpertCacheRule(const RoutingRule& rule, const ExpertCacheCall& call,
                                  SubstitutionLedger* ledger, ExpertCacheOutcome* outcome);

}  // namespace moert

#endif  // MOERT_LIB_ROUTE_EXPERT_CACHE_RULE_H_
