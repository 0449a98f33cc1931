// expertflow-2510-like: offloading as ExpertFlow (arXiv 2510.26730, the rival of the DynaExq paper)
// does it, for comparison. The model's own routing, a two-level LRU cache, predicted experts
// fetched ahead, misses loaded on demand.
//
// Approximations:
//  - its two-level cache is taken as published: experts that are predicted and not used yet are on
//    the upper level and leave last; below, the least recently used leaves;
//  - its predictor, a random forest over token features and pre-gate scores, is replaced by the
//    next layer's gate on this layer's input;
//  - its step size, the number of layers predicted at once, adapts to bandwidth and batch; here it
//    is one layer, the reach of a prefetch policy.
#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "prefetch/prefetch_rule.h"
#include "research/strategies/research_strategies.h"
#include "strategies/builtin.h"

namespace moert {
namespace {

class TwoLevelLru final : public ResidencyPolicy {
 public:
  int Victim(const VictimSnapshot& snapshot) override {
    lower_.clear();
    place_.clear();
    for (size_t i = 0; i < snapshot.candidates.size(); ++i) {
      if (snapshot.candidates[i].unused_prefetch) continue;
      lower_.push_back(snapshot.candidates[i]);
      place_.push_back(static_cast<int>(i));
    }
    if (!lower_.empty()) return place_[LeastRecentlyUsed(lower_)];
    return snapshot.for_prefetch ? -1 : LeastRecentlyUsed(snapshot.candidates);
  }

 private:
  std::vector<VictimCandidate> lower_;  // scratch
  std::vector<int> place_;
};

}  // namespace

absl::StatusOr<Strategy> BuildExpertFlow2510Like(const StrategyContext& context) {
  const StrategyParams& params = context.params;
  Strategy strategy;
  if (params.Has("scheme")) strategy.versions = {params.Text("scheme", "")};
  strategy.prefetch_control = false;  // it always prefetches
  strategy.prefetch = MakePrefetchPolicy({.kind = PrefetchRuleKind::kTopScore});
  strategy.residency = std::make_unique<TwoLevelLru>();
  return strategy;
}

}  // namespace moert
