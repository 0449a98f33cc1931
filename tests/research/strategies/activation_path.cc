// activation-path: the expert-activation-path predictor (EAP) that Fate is compared with. Which
// experts of layer l+1 tokens used that used expert i of layer l, counted online; the prediction is
// the sum over the layer's active experts.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "research/strategies/research_strategies.h"

namespace moert {
namespace {

class ActivationPath final : public PrefetchPolicy {
 public:
  explicit ActivationPath(int width) : width_(width) {}

  PolicyTraits traits() const override {
    PolicyTraits traits;
    traits.path_width = width_;
    return traits;
  }

  void Observe(const LayerEvent& event) override {
    const PolicyContext& context = event.context;
    const RoutingView& routing = event.routing;
    const MoeModelSpec& model = *context.model;
    if (follows_.empty()) {
      std::vector<std::vector<float>> follows(model.layers.size());
      for (size_t l = 0; l + 1 < model.layers.size(); ++l) {
        follows[l].assign(size_t{1} * model.layers[l].num_experts * model.layers[l + 1].num_experts,
                          0);
      }
      follows_ = std::move(follows);  // complete, or none
    }
    previous_ids_.reserve(routing.ids.size());  // counted and remembered, or neither
    // Token by token: who followed whom. Rows of two layers of one step are the same tokens.
    if (context.layer > 0 && previous_step_ == context.step &&
        previous_layer_ == context.layer - 1 && previous_tokens_ == routing.tokens) {
      std::vector<float>& follows = follows_[context.layer - 1];
      const int experts = model.layers[context.layer].num_experts;
      for (int64_t t = 0; t < routing.tokens; ++t) {
        for (int i = 0; i < previous_k_; ++i) {
          const int32_t before = previous_ids_[t * previous_k_ + i];
          if (before < 0) continue;
          float* row = &follows[int64_t{before} * experts];
          for (int j = 0; j < routing.top_k; ++j) {
            const int32_t e = routing.ids[t * routing.top_k + j];
            if (e >= 0) row[e] += 1;
          }
        }
      }
    }
    previous_ids_.assign(routing.ids.begin(), routing.ids.end());
    previous_tokens_ = routing.tokens;
    previous_k_ = routing.top_k;
    previous_layer_ = context.layer;
    previous_step_ = context.step;
  }

  std::vector<PrefetchCandidate> Rank(const PrefetchSnapshot& snapshot) override {
    const PolicyContext& context = snapshot.context;
    if (snapshot.target_layer != context.layer + 1 || follows_.empty()) return {};
    const int experts = context.model->layers[snapshot.target_layer].num_experts;
    std::vector<float> score(experts, 0);
    int active = 0;
    for (size_t i = 0; i < snapshot.routing.counts.size(); ++i) {
      const int32_t count = snapshot.routing.counts[i];
      if (count == 0) continue;
      ++active;
      const float* row = &follows_[context.layer][i * experts];
      float total = 0;
      for (int e = 0; e < experts; ++e) total += row[e];
      if (total == 0) continue;
      const float share = static_cast<float>(count) / total;
      for (int e = 0; e < experts; ++e) score[e] += share * row[e];
    }
    std::vector<PrefetchCandidate> ranked;
    for (int e = 0; e < experts; ++e) {
      if (score[e] > 0) ranked.push_back({{snapshot.target_layer, e}, score[e]});
    }
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const auto& a, const auto& b) { return a.score > b.score; });
    // As many as the layer in front uses, widened: paths share experts, so the union is no larger.
    const size_t wanted = static_cast<size_t>(std::max(1, active * width_ / 100));
    if (ranked.size() > wanted) ranked.resize(wanted);
    return ranked;
  }

 private:
  const int width_;
  std::vector<std::vector<float>> follows_;  // [L - 1][E * E']
  std::vector<int32_t> previous_ids_;
  int64_t previous_tokens_ = 0;
  int64_t previous_step_ = -1;
  int previous_k_ = 0;
  int previous_layer_ = -1;
};

}  // namespace

absl::StatusOr<Strategy> BuildActivationPath(const StrategyContext& context) {
  const StrategyParams& params = context.params;
  Strategy strategy;
  if (params.Has("scheme")) strategy.versions = {params.Text("scheme", "")};
  MOERT_ASSIGN_OR_RETURN(const int64_t width, params.Integer("width", 100, 1, 1000));
  strategy.prefetch = std::make_unique<ActivationPath>(static_cast<int>(width));
  MOERT_ASSIGN_OR_RETURN(strategy.prefetch_control, params.Flag("control", true));
  return strategy;
}

}  // namespace moert
