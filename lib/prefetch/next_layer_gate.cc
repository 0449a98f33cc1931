#include "prefetch/next_layer_gate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "store/state_bytes.h"

namespace moert {
namespace {

class NextLayerGate final : public PrefetchPolicy {
 public:
  explicit NextLayerGate(const NextLayerGateOptions& options) : options_(options) {}

  PolicyTraits traits() const override { return {.next_gate = true}; }

  int64_t StateBytes(const PolicyScope& scope) const override {
    return PerLayerExpert(scope, int64_t{sizeof(int32_t) + sizeof(double) + 1 + sizeof(int)}) +
           RankedBytes(scope);
  }

  std::vector<PrefetchCandidate> Rank(const PrefetchSnapshot& snapshot) override {
    const int target = snapshot.target_layer;
    if (snapshot.predicted_scores.empty()) return {};
    if (target != snapshot.context.layer + 1 && !options_.wrap) return {};
    const MoeLayerSpec& layer = snapshot.context.model->layers[target];
    const int experts = layer.num_experts;
    const int k = std::min(layer.routing.top_k, experts);
    const bool prefill = snapshot.context.phase == Phase::kPrefill;
    int width = k;
    if (!prefill) {
      width =
          options_.top > 0 ? options_.top : ExpertsAbovePercentile(experts, options_.percentile);
      width = std::clamp(width, k, experts);
    }

    tokens_.assign(experts, 0);
    sums_.assign(experts, 0);
    selected_.assign(experts, 0);
    order_.resize(experts);
    for (int64_t t = 0; t < snapshot.routing.tokens; ++t) {
      const float* scores = &snapshot.predicted_scores[t * experts];
      for (int e = 0; e < experts; ++e) {
        order_[e] = e;
        sums_[e] += scores[e];
      }
      const auto better = [&](int a, int b) {
        return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
      };
      std::partial_sort(order_.begin(), order_.begin() + width, order_.end(), better);
      for (int i = 0; i < width; ++i) selected_[order_[i]] = 1;
      for (int i = 0; i < k; ++i) ++tokens_[order_[i]];
    }
    if (prefill && WholeLayerFits(snapshot)) selected_.assign(experts, 1);

    std::vector<PrefetchCandidate> ranked;
    for (int e = 0; e < experts; ++e) {
      // A sum of scores in (0, T) breaks ties of whole tokens.
      const double tie = sums_[e] / static_cast<double>(snapshot.routing.tokens + 1);
      if (selected_[e]) {
        ranked.push_back({{target, e}, static_cast<float>(tokens_[e] + tie), tokens_[e]});
      }
    }
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const auto& a, const auto& b) { return a.score > b.score; });
    return ranked;
  }

 private:
  static bool WholeLayerFits(const PrefetchSnapshot& snapshot) {
    int64_t missing = 0;
    for (const uint8_t usable : snapshot.target.usable) missing += !usable;
    return missing * snapshot.transfer_ns <= snapshot.window_ns;
  }

  const NextLayerGateOptions options_;
  std::vector<int32_t> tokens_;  // scratch, [E']
  std::vector<double> sums_;
  std::vector<uint8_t> selected_;
  std::vector<int> order_;
};

}  // namespace

int ExpertsAbovePercentile(int experts, double percentile) {
  // Linear interpolation between order statistics: the percentile lies at this index of the
  // ascending scores, and the selected experts begin at the next one.
  const double at = percentile / 100 * (experts - 1);
  return experts - 1 - static_cast<int>(std::floor(at + 1e-9));
}

std::unique_ptr<PrefetchPolicy> MakeNextLayerGate(const NextLayerGateOptions& options) {
  return std::make_unique<NextLayerGate>(options);
}

}  // namespace moert
