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

/// How the fast tier is used.
enum class Serving : int32_t {
  /// A cache: experts come and go, a miss waits (or is placed elsewhere).
  kCache = 0,
  /// Every expert is resident in one of two versions; the precision policy owns who is high.
  kHotSet = 1,
  /// Every expert is resident in the low version; what is left is a cache of high versions.
  kLowPlusCache = 2,
};

/// Kinds kHotSet and kLowPlusCache: how versions change.
struct TransitionOptions {
  int64_t interval_ns = 200'000'000;  // kHotSet: between two decisions
  double hi_fraction =
      -1;               // kHotSet: share of a layer's experts held high; < 0: what the budget holds
  int spare = 4;        // kHotSet: spare blocks of each pool, so that full pools can swap
  double max_gbps = 0;  // limit of transition bytes, GB/s; 0: none
};

struct Strategy {
  std::string spec;
  Serving serving = Serving::kCache;
  TransitionOptions transitions;
  /// Bit-identical output at any budget (design rule 6).
  bool exact = true;
  /// Guarantees a usable version of every expert, so layers can be captured in a CUDA graph, if
  /// nothing else speaks against it (Engine::graph_safe).
  bool graph_safe = false;
  /// Every expert is loaded at open; a budget that cannot hold them is refused.
  bool preload = false;
  /// Names of the versions it serves, most bits first; empty: the source's first. kHotSet and
  /// kLowPlusCache serve two.
  std::vector<std::string> versions;

  /// Decode steps without prefetch are tried now and then, and win if they are faster.
  bool prefetch_control = true;

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
