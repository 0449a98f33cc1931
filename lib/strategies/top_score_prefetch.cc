// Prefetch of the experts that are predicted to matter (importance paper Sec. 5.2), predicted by
// the next layer's gate on the input that the host derives from this layer's resident experts, or,
// where it does not offer that, on this layer's own input.
#include <algorithm>
#include <limits>

#include "route/route_token.h"
#include "strategies/builtin.h"
#include "strategies/state_bytes.h"

namespace moert {
namespace {

/// In decode, only experts predicted to
/// be top-score are worth a transfer: a low-score one would be replaced if it were absent. In
/// prefill nothing is replaced: every predicted active is wanted, most tokens first.
///
/// Predicted scores are ranked as they are: a selection bias or group limit of the next layer's
/// router is not applied.
class TopScorePrefetch final : public PrefetchPolicy {
 public:
  TopScorePrefetch(float alpha, bool resident_forward)
      : alpha_(alpha), resident_forward_(resident_forward) {}

  PolicyTraits traits() const override {
    return {.by_gate = true, .next_gate = true, .resident_forward = resident_forward_};
  }

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
  const bool resident_forward_;
  std::vector<float> gain_;     // [E'], summed over the batch
  std::vector<int32_t> order_;  // ranks 1..k+1
};

}  // namespace

std::unique_ptr<PrefetchPolicy> MakeTopScorePrefetch(float alpha, bool resident_forward) {
  return std::make_unique<TopScorePrefetch>(alpha, resident_forward);
}

}  // namespace moert
