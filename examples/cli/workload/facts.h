// Facts about routing, in the terms in which they were published: to compare workloads and recorded
// traces with each other and with the papers.
#ifndef MOERT_EXAMPLES_CLI_WORKLOAD_FACTS_H_
#define MOERT_EXAMPLES_CLI_WORKLOAD_FACTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/tools/trace.h"
#include "nlohmann/json.hpp"

namespace moert::cli {

struct RoutingFacts {
  int64_t steps = 0;
  /// Mean share of a layer's experts that a step uses.
  double density = 0;
  /// Share of a token's experts that the same request's token before it used too. Decode only.
  double reuse = 0;
  /// Share of a layer's lookups that an LRU cache of so many of its experts hits, after the first
  /// eighth of the steps: [20 %, 40 %, 60 %]. A lookup is a distinct expert of a step.
  double lru[3] = {};
  /// Shares of the experts a layer used: among the k that the layer before predicted best, and
  /// among the quarter of all experts it predicted best. By layer (0 has none), and their mean.
  std::vector<double> recall_topk, recall_quarter;
  double mean_recall_topk = 0, mean_recall_quarter = 0;
  /// Use over the whole trace, mean over layers: the most used expert over the uniform share, the
  /// share of the most used quarter, entropy over that of uniform use.
  double most_used = 0, quarter_share = 0, entropy = 0;
  /// Scores: the best, the sum of the k best, the (k+1)-th over the best.
  double top_score = 0, topk_mass = 0, beta_over_top = 0;
};

/// Reads the trace from its beginning, at most `max_steps` (0: all).
absl::StatusOr<RoutingFacts> MeasureRouting(TraceReader* trace, int64_t max_steps = 0);

nlohmann::json ToJson(const RoutingFacts& facts);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_WORKLOAD_FACTS_H_
