// importance: spend transfers on the experts that matter (importance paper Sec. 5). Routing by the
// expert-cache rule, eviction by average score, prefetch of predicted top-score experts.
//
// Lossy unless alpha = 0; bounded by max_slots and max_mass, which hold for every request. The
// suggested alpha and what it costs: docs/quality-importance.md.
#include <algorithm>
#include <limits>

#include "base/status_macros.h"
#include "route/expert_cache_rule.h"
#include "route/route_token.h"
#include "strategies/builtin.h"

namespace moert {
namespace {

class ExpertCacheRouting final : public RoutingPolicy {
 public:
  ExpertCacheRouting(const RoutingRule& rule, bool decode_only)
      : rule_(rule), decode_only_(decode_only) {}

  absl::string_view name() const override { return "expert-cache"; }

  absl::Status Check(const MoeModelSpec& model) const override {
    for (const MoeLayerSpec& layer : model.layers) {
      MOERT_RETURN_IF_ERROR(CheckExpertCacheRule(layer.routing));
    }
    return absl::OkStatus();
  }

  RoutingRule Rule(const PolicyContext& context) override {
    return decode_only_ && context.phase != Phase::kDecode ? RoutingRule{} : rule_;
  }

 private:
  const RoutingRule rule_;
  const bool decode_only_;
};

/// Predicts with the next layer's gate on this layer's input. In decode, only experts predicted to
/// be top-score are worth a transfer: a low-score one would be replaced if it were absent. In
/// prefill nothing is replaced: every predicted active is wanted, most tokens first.
///
/// Predicted scores are ranked as they are: a selection bias or group limit of the next layer's
/// router is not applied.
class TopScorePrefetch final : public PrefetchPolicy {
 public:
  explicit TopScorePrefetch(float alpha) : alpha_(alpha) {}

  absl::string_view name() const override { return "top-score"; }
  bool wants_next_gate() const override { return true; }

  std::vector<PrefetchCandidate> Rank(const PrefetchSnapshot& snapshot) override {
    // On the wrap to the next token the gate would see the wrong token.
    if (snapshot.predicted_scores.empty() || snapshot.target_layer != snapshot.context.layer + 1) {
      return {};
    }
    const MoeLayerSpec& target = snapshot.context.model->layers[snapshot.target_layer];
    const int experts = target.num_experts;
    const int k = target.routing.top_k;
    const bool prefill = snapshot.context.phase == Phase::kPrefill;
    gain_.assign(experts, 0);
    const int ranked = std::min(k + 1, experts);
    order_.resize(ranked);
    for (int64_t t = 0; t < snapshot.routing.tokens; ++t) {
      const absl::Span<const float> scores =
          snapshot.predicted_scores.subspan(t * experts, experts);
      TopK(scores, ranked, order_.data());
      const float beta = ranked > k ? scores[order_[k]] : -std::numeric_limits<float>::infinity();
      for (int j = 0; j < k; ++j) {
        const float score = scores[order_[j]];
        if (prefill) {
          gain_[order_[j]] += 1;
        } else if (ranked <= k || score > (1 + alpha_) * beta) {
          gain_[order_[j]] += score;
        }
      }
    }
    std::vector<PrefetchCandidate> candidates;
    for (int e = 0; e < experts; ++e) {
      if (gain_[e] > 0) candidates.push_back({{snapshot.target_layer, e}, gain_[e]});
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const auto& a, const auto& b) { return a.score > b.score; });
    return candidates;
  }

 private:
  const float alpha_;
  std::vector<float> gain_;     // [E'], summed over the batch
  std::vector<int32_t> order_;  // ranks 1..k+1
};

}  // namespace

absl::StatusOr<Strategy> BuildImportance(const Params& params) {
  Strategy strategy;
  if (params.Has("scheme")) strategy.versions = {params.Text("scheme", "")};
  RoutingRule rule;
  rule.kind = RoutingRuleKind::kExpertCache;
  MOERT_ASSIGN_OR_RETURN(const double alpha, params.Number("alpha", 0.3, 0, 1));
  MOERT_ASSIGN_OR_RETURN(const int phase, params.OneOf("phase", 0, {"decode", "all"}));
  MOERT_ASSIGN_OR_RETURN(rule.second_pass, params.Flag("second_pass", false));
  MOERT_ASSIGN_OR_RETURN(const double slots, params.Number("max_slots", 1, 0, 1));
  MOERT_ASSIGN_OR_RETURN(const double mass, params.Number("max_mass", 1, 0, 1));
  MOERT_ASSIGN_OR_RETURN(const int weights, params.OneOf("weights", 0, {"own", "displaced"}));
  MOERT_ASSIGN_OR_RETURN(const int64_t window, params.Integer("n", 16, 1, 4096));
  rule.alpha = static_cast<float>(alpha);
  rule.max_slot_share = static_cast<float>(slots);
  rule.max_mass_share = static_cast<float>(mass);
  rule.own_score_weights = weights == 0;
  strategy.exact = alpha == 0;
  strategy.routing = std::make_unique<ExpertCacheRouting>(rule, phase == 0);
  strategy.prefetch = std::make_unique<TopScorePrefetch>(rule.alpha);
  strategy.residency = MakeAverageScore(static_cast<int>(window));
  return strategy;
}

}  // namespace moert
