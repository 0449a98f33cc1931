// The expert-cache router (importance paper Sec. 5.1, Algorithm 1): experts with high scores are
// kept. Low-score experts that would have to be fetched are replaced by inactive ones at hand.
//
// For a token with scores s, E eligible experts in descending score (of equals the lower index
// first) and beta the score of rank k + 1:
//   active       the k experts the model's own rule chose;
//   top-score    active with s > (1 + alpha) beta; over the batch they form the set C;
//   at hand      resident, or in C;
//   replaceable  active, not top-score, not at hand;
//   substitute   not active, (1 - alpha) beta <= s <= beta, at hand.
// The worst-scored replaceable experts are replaced by the best-scored substitutes, as many as
// there are of both; the remaining replaceable experts are fetched. The paper's listing differs
// from its prose in two places, where the prose is followed: rank k + 1 is not active, and
// low-score active experts that are at hand keep their places.
//
// The second pass (Sec. 5.4, for use with a balancer) then groups the experts left to be fetched: a
// replaceable expert x is replaced by an expert y with a substitute's score that is not at hand but
// that other tokens force to be fetched, if at least as many tokens use y as use x. Tokens go in
// order, the y with most tokens first. Once y was chosen like this, its other users may not replace
// it, so every y is really fetched for another token.
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
  absl::Span<int32_t> ids;    // [T, k]: a substitute takes the slot of the displaced expert
  absl::Span<float> weights;  // [T, k]
};

struct ExpertCacheOutcome {
  int64_t substituted = 0;
  double mass_substituted = 0;     // weights that the model gave the displaced experts
  std::vector<uint8_t> top_score;  // [E]: the set C
};

/// An error, with the reason, if this routing has no scores that the rule could use (sparsemixer).
absl::Status CheckExpertCacheRule(const RoutingSpec& spec);

/// Executes `rule` (kExpertCache) on the call. alpha = 0 changes nothing, ties included. The rule's
/// caps hold for every request over its lifetime: a substitution that would exceed one is not made.
/// `ledger` keeps the requests' accounts.
absl::Status ApplyExpertCacheRule(const RoutingRule& rule, const ExpertCacheCall& call,
                                  SubstitutionLedger* ledger, ExpertCacheOutcome* outcome);

}  // namespace moert

#endif  // MOERT_LIB_ROUTE_EXPERT_CACHE_RULE_H_
