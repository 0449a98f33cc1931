// hybrimoe-like: what HybriMoE (arXiv 2504.05897) adds to expert offloading, for comparison. The
// model's own routing, a score-aware cache, gate-based prefetch and a CPU that shares the misses.
//
// Approximations:
//  - its cache by Minus Recent Score is taken as published: S <- a TopP(s) + (1 - a) S with TopP
//    keeping the 2k highest scores, lowest S leaves;
//  - its scheduling simulation of CPU, link and GPU queues is replaced by the split of the misses
//    that is done earliest, the link taking those with most tokens (plan/placement_rule.h); cached
//    experts are never moved to an idle CPU. Where the CPU is always earlier, what it computed is
//    brought into slots that nobody holds (HybriMoE begins with a full cache; this is in the
//    baseline's favour). `cpu=turns` is Algorithm 2 of the importance paper;
//  - its impact-driven prefetch over the next three layers is replaced by the next layer's
//    predicted actives, most tokens first.
#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "plan/placement_rule.h"
#include "prefetch/prefetch_rule.h"
#include "research/strategies/research_strategies.h"
#include "route/route_token.h"
#include "strategies/builtin.h"

namespace moert {
namespace {

class MinusRecentScore final : public ResidencyPolicy {
 public:
  explicit MinusRecentScore(double alpha) : alpha_(alpha) {}

  void Observe(const LayerEvent& event) override {
    if (event.kind != LayerEvent::Kind::kRouted) return;
    const PolicyContext& context = event.context;
    const RoutingView& routing = event.routing;
    if (priorities_.empty()) priorities_.resize(context.model->layers.size());
    const int experts = context.model->layers[context.layer].num_experts;
    std::vector<double>& priority = priorities_[context.layer];
    priority.resize(experts, 0);
    recent_.assign(experts, 0);
    const int top = std::min(2 * routing.top_k, experts);
    best_.resize(top);
    for (int64_t t = 0; t < routing.tokens && !routing.scores.empty(); ++t) {
      const absl::Span<const float> scores = routing.scores.subspan(t * experts, experts);
      TopK(scores, top, best_.data());
      for (const int32_t e : best_) {
        if (scores[e] == scores[e]) recent_[e] += static_cast<double>(scores[e]);
      }
    }
    for (int e = 0; e < experts; ++e) {
      const double mean = recent_[e] / static_cast<double>(routing.tokens);
      priority[e] = alpha_ * mean + (1 - alpha_) * priority[e];
    }
  }

  int Victim(const VictimSnapshot& snapshot) override {
    int victim = 0;
    for (int i = 1; i < static_cast<int>(snapshot.candidates.size()); ++i) {
      const VictimCandidate& a = snapshot.candidates[i];
      const VictimCandidate& b = snapshot.candidates[victim];
      const double pa = Priority(a.key), pb = Priority(b.key);
      if (pa < pb || (pa == pb && a.last_used < b.last_used)) victim = i;
    }
    return victim;
  }

 private:
  double Priority(ExpertKey key) const {
    if (priorities_.empty() || priorities_[key.layer].empty()) return 0;
    return priorities_[key.layer][key.expert];
  }

  const double alpha_;
  std::vector<std::vector<double>> priorities_;  // [L][E]
  std::vector<double> recent_;
  std::vector<int32_t> best_;
};

}  // namespace

absl::StatusOr<Strategy> BuildHybriMoeLike(const StrategyContext& context) {
  const StrategyParams& params = context.params;
  Strategy strategy;
  if (params.Has("scheme")) strategy.versions = {params.Text("scheme", "")};
  MOERT_ASSIGN_OR_RETURN(const double decay, params.Number("decay", 0.3, 0.001, 1));
  strategy.residency = std::make_unique<MinusRecentScore>(decay);
  strategy.prefetch = MakePrefetchPolicy({.kind = PrefetchRuleKind::kTopScore});
  MOERT_ASSIGN_OR_RETURN(const int cpu, params.OneOf("cpu", 1, {"turns", "1"}));
  MOERT_ASSIGN_OR_RETURN(const bool fill, params.Flag("fill", false));
  MOERT_ASSIGN_OR_RETURN(strategy.prefetch_control, params.Flag("control", true));
  strategy.placement = MakePlacementPolicy(
      {.balance = cpu == 1 ? CpuBalance::kByCompletion : CpuBalance::kInTurns,
       .backfills = fill});
  return strategy;
}

}  // namespace moert
