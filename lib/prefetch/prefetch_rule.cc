#include "prefetch/prefetch_rule.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "prefetch/calibrated_gate.h"
#include "route/route_token.h"
#include "store/state_bytes.h"

namespace moert {
namespace {

/// Prefetches the experts that are predicted to matter (importance paper Sec. 5.2). The next
/// layer's gate predicts them, on the input that the host derives from this layer's resident
/// experts, or, if the host does not offer that, on this layer's own input.
///
/// In decode, only experts predicted to be top-score are worth a transfer: a low-score expert would
/// be replaced if it were absent. In prefill nothing is replaced, so every predicted active expert
/// is wanted, most tokens first.
///
/// Predicted scores are ranked as they are: a selection bias or group limit of the next layer's
/// router is not applied.
class TopScorePrefetch final : public PrefetchPolicy {
 public:
  explicit TopScorePrefetch(const PrefetchRule& rule) : rule_(rule) {}

  std::optional<PrefetchRule> rule() const override { return rule_; }

  int64_t StateBytes(const PolicyScope& scope) const override {
    return PerLayerExpert(scope, int64_t{sizeof(float) + sizeof(int32_t)}) + RankedBytes(scope);
  }

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
        } else if (ranked <= k || score > (1 + rule_.alpha) * beta) {
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
  const PrefetchRule rule_;
  std::vector<float> gain_;     // [E'], summed over the batch
  std::vector<int32_t> order_;  // ranks 1..k+1
};

}  // namespace

std::unique_ptr<PrefetchPolicy> MakePrefetchPolicy(const PrefetchRule& rule) {
  if (rule.kind == PrefetchRuleKind::kTopScore) return std::make_unique<TopScorePrefetch>(rule);
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
