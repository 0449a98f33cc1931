#include "prefetch/calibrated_gate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "prefetch/next_layer_gate.h"
#include "store/state_bytes.h"

namespace moert {
namespace {

constexpr double kLeast = 0.02;  // less likely experts are not candidates

class CalibratedGate final : public PrefetchPolicy {
 public:
  explicit CalibratedGate(const PrefetchRule& rule)
      : rule_(rule), prefill_(MakeNextLayerGate({75, 0, rule.wrap})) {}

  std::optional<PrefetchRule> rule() const override { return rule_; }

  int64_t StateBytes(const PolicyScope& scope) const override {
    // Two predictions with a ratio and a bin for each score; the lists absent, used and sorted.
    const int64_t scores = scope.max_tokens * scope.model->max_experts();
    return 2 * scores * int64_t{sizeof(float) + 1} +
           PerLayerExpert(scope, 3 + int64_t{sizeof(float)}) + RankedBytes(scope) +
           2 * scope.model->num_layers() * int64_t{sizeof(HitCurve)} + prefill_->StateBytes(scope);
  }

  void Observe(const LayerEvent& event) override {
    if (event.kind != LayerEvent::Kind::kRouted) return;
    Prediction& last = last_[event.context.layer % 2];
    if (last.layer != event.context.layer) return;
    last.layer = -1;
    if (last.tokens != event.routing.tokens) return;
    const int experts = static_cast<int>(last.absent.size());
    Curves& curves = of_[last.forward ? 1 : 0];
    used_.assign(experts, 0);
    for (int64_t t = 0; t < last.tokens; ++t) {
      const auto ids = event.routing.ids.subspan(t * event.routing.top_k, event.routing.top_k);
      for (const int32_t e : ids) used_[e] = 1;
      for (int e = 0; e < experts; ++e) {
        if (!last.absent[e]) continue;
        const int bin = last.bins[t * experts + e];
        curves.all.Add(bin, used_[e] != 0);
        curves.layers[event.context.layer].Add(bin, used_[e] != 0);
      }
      for (const int32_t e : ids) used_[e] = 0;
    }
  }

  std::vector<PrefetchCandidate> Rank(const PrefetchSnapshot& snapshot) override {
    if (snapshot.context.phase == Phase::kPrefill) return prefill_->Rank(snapshot);
    const int target = snapshot.target_layer;
    if (snapshot.predicted_scores.empty()) return {};
    if (target != snapshot.context.layer + 1 && !rule_.wrap) return {};
    const MoeLayerSpec& layer = snapshot.context.model->layers[target];
    for (Curves& curves : of_) curves.layers.resize(snapshot.context.model->layers.size());
    SetRatios(snapshot, layer.num_experts, std::min(layer.routing.top_k, layer.num_experts));
    return Candidates(snapshot, layer.num_experts);
  }

 private:
  struct Curves {
    HitCurve all;
    std::vector<HitCurve> layers;  // [L]
  };
  /// A prediction for a layer that has not been routed.
  struct Prediction {
    int layer = -1;
    int64_t tokens = 0;
    bool forward = false;         // from the input that the host predicted
    std::vector<float> ratios;    // [T, E], score divided by the token's k-th best
    std::vector<uint8_t> bins;    // [T, E], HitCurve::Bin of the ratio
    std::vector<uint8_t> absent;  // [E]
  };

  void SetRatios(const PrefetchSnapshot& snapshot, int experts, int k) {
    Prediction& made = last_[snapshot.target_layer % 2];
    made.layer = -1;  // until the prediction is complete
    made.tokens = snapshot.routing.tokens;
    made.forward = snapshot.resident_forward;
    made.ratios.resize(made.tokens * experts);
    made.bins.resize(made.ratios.size());
    made.absent.resize(experts);
    for (int e = 0; e < experts; ++e) made.absent[e] = snapshot.target.usable[e] == 0;
    for (int64_t t = 0; t < made.tokens; ++t) {
      const float* scores = &snapshot.predicted_scores[t * experts];
      sorted_.assign(scores, scores + experts);
      std::nth_element(sorted_.begin(), sorted_.begin() + (k - 1), sorted_.end(),
                       std::greater<float>());
      const float kth = std::max(sorted_[k - 1], std::numeric_limits<float>::min());
      for (int e = 0; e < experts; ++e) {
        const float ratio = scores[e] / kth;
        made.ratios[t * experts + e] = ratio;
        made.bins[t * experts + e] = static_cast<uint8_t>(HitCurve::Bin(ratio));
      }
    }
    made.layer = snapshot.target_layer;
  }

  std::vector<PrefetchCandidate> Candidates(const PrefetchSnapshot& snapshot, int experts) const {
    const Prediction& made = last_[snapshot.target_layer % 2];
    const Curves& curves = of_[made.forward ? 1 : 0];
    const HitCurve& curve = curves.layers[snapshot.target_layer];
    std::vector<PrefetchCandidate> ranked;
    for (int e = 0; e < experts; ++e) {
      double unused = 1;
      double tokens = 0;
      for (int64_t t = 0; t < made.tokens; ++t) {
        const int bin = made.bins[t * experts + e];
        const double guess = HitCurve::Guess(made.ratios[t * experts + e]);
        const double p = curve.Probability(bin, curves.all.Probability(bin, guess));
        unused *= 1 - p;
        tokens += p;
      }
      if (!(1 - unused >= kLeast)) continue;
      ranked.push_back({{snapshot.target_layer, e},
                        static_cast<float>(1 - unused),
                        static_cast<int32_t>(std::lround(tokens)),
                        static_cast<float>(1 - unused)});
    }
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const auto& a, const auto& b) { return a.score > b.score; });
    return ranked;
  }

  const PrefetchRule rule_;
  const std::unique_ptr<PrefetchPolicy> prefill_;
  std::array<Curves, 2> of_;  // for the gate on this layer's input, and on the host's prediction
  std::array<Prediction, 2> last_;
  std::vector<float> sorted_;  // scratch
  std::vector<uint8_t> used_;
};

}  // namespace

std::unique_ptr<PrefetchPolicy> MakeCalibratedGate(const PrefetchRule& rule) {
  return std::make_unique<CalibratedGate>(rule);
}

}  // namespace moert
