// expertflow-like: offloading with predicted prefetch as ExpertFlow (arXiv 2410.17954) does it, for
// comparison. The model's own routing, a cache, all of the predicted experts fetched ahead, misses
// loaded on demand.
//
// Approximations:
//  - its routing path predictor, a trained transformer that sees whole sequences in advance, is
//    replaced by the next layer's gate on this layer's input: no training, one layer ahead;
//  - its cache, which corrects mispredictions while they are computed, is an LRU cache whose wrong
//    prefetches are forgotten when the true routing arrives and have not started;
//  - its token scheduler, which regroups requests by predicted experts, is the host's business and
//    is left out.
#include "base/status_macros.h"
#include "prefetch/prefetch_rule.h"
#include "research/strategies/research_strategies.h"
#include "strategies/builtin.h"

namespace moert {

absl::StatusOr<Strategy> BuildExpertFlowLike(const StrategyContext& context) {
  const StrategyParams& params = context.params;
  Strategy strategy;
  if (params.Has("scheme")) strategy.versions = {params.Text("scheme", "")};
  strategy.prefetch_control = false;  // it always prefetches
  strategy.prefetch = MakePrefetchPolicy({.kind = PrefetchRuleKind::kTopScore});
  return strategy;
}

}  // namespace moert
