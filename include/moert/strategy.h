// A strategy is a named bundle of policies; a null seam means its default.
//
// Spec grammar: `name[:key=value,...]`, composed as `A+B.seam[:...]`: everything from A, that seam
// from B. Two strategies that fill the same seam without naming one are an error. Unknown names,
// seams or keys are errors that list the legal ones.
#ifndef MOERT_STRATEGY_H_
#define MOERT_STRATEGY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "moert/policy.h"

namespace moert {

struct Strategy {
  std::string spec;
  /// Bit-identical output at any budget (design rule 6).
  bool exact = true;
  /// Guarantees a usable version of every expert, so layers can be captured in a CUDA graph.
  bool graph_safe = false;
  /// Every expert is loaded at open; a budget that cannot hold them is refused.
  bool preload = false;
  /// Names of the versions it serves, most bits first; empty: the source's first.
  std::vector<std::string> versions;

  std::unique_ptr<RoutingPolicy> routing;      // null: the model's own top-k
  std::unique_ptr<PrefetchPolicy> prefetch;    // null: none
  std::unique_ptr<ResidencyPolicy> residency;  // null: LRU, uniform capacity
  std::unique_ptr<PrecisionPolicy> precision;  // null: fixed
  std::unique_ptr<PlacementPolicy> placement;  // null: load
};

/// Builds a strategy from its spec.
absl::StatusOr<Strategy> MakeStrategy(absl::string_view spec);

struct StrategyInfo {
  std::string name;
  std::string summary;
  std::vector<std::string> keys;  // "alpha=0.3: ..." with defaults and units
};
/// Every built-in strategy, in the order of the documentation.
std::vector<StrategyInfo> ListStrategies();

}  // namespace moert

#endif  // MOERT_STRATEGY_H_
