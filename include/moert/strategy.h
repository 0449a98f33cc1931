// A strategy is a named bundle of policies; a null policy means its default.
//
// Spec grammar: `name[:key=value,...]`, composed as `A+B.seam[:...]`: everything from A, that seam
// from B. The seams are routing, prefetch, residency, precision and placement. `A+B` takes every
// seam that B fills, and is an error where A fills it too. Unknown names, seams and keys are errors
// that list the legal ones; a seam without effect is an error that says why. Strategies of a host
// (RegisterStrategy) work wherever a spec does: engines, compositions, replays, tools.
#ifndef MOERT_STRATEGY_H_
#define MOERT_STRATEGY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "moert/policy.h"
#include "moert/strategy_params.h"

namespace moert {

/// How the fast tier is used.
enum class Serving : int32_t {
  kCache = 0,  // a cache: experts come and go, a miss waits (or is placed elsewhere)
  /// Every expert is resident in one of two versions, or of up to four where the backend has blocks
  /// of several sizes (the CPU). The precision policy decides who is high.
  kHotSet = 1,
  kLowPlusCache = 2,  // every expert is resident in the low version; the rest caches high ones
  /// A cache of the high version, as kCache, and beside it the low version of every expert, which
  /// answers the misses that the placement policy gives it (Placement::kLow).
  kCacheOverLow = 3,
};

struct Strategy {
  std::string spec = {};
  Serving serving = Serving::kCache;
  TransitionOptions transitions = {};
  bool preload = false;  // kCache: loads every expert at open; a budget too small is refused
  /// Names of the versions it serves, most bits first; empty: the source's first. All but kCache
  /// serve two, kHotSet two to four.
  std::vector<std::string> versions = {};
  /// Decode steps without prefetch are tried now and then: it stays off while they are faster.
  bool prefetch_control = true;

  std::unique_ptr<RoutingPolicy> routing = {};      // null: the model's own top-k
  std::unique_ptr<PrefetchPolicy> prefetch = {};    // null: none
  std::unique_ptr<ResidencyPolicy> residency = {};  // null: LRU, uniform capacity
  std::unique_ptr<PrecisionPolicy> precision = {};  // null: fixed; required by kHotSet
  std::unique_ptr<PlacementPolicy> placement = {};  // null: load

  /// The weakest promise of its parts. Versions that answer for one another are lossy; residency
  /// and prefetch do not count: they never decide what is computed.
  Promise promise() const;
  bool exact() const { return promise() == Promise::kExact; }  // no policy changes results
  /// Whether every expert always has a usable version and no policy is asked while a layer runs.
  /// Layers can then be captured in a CUDA graph if nothing else prevents it (Engine::graph_needs).
  bool graph_safe() const;
  /// Whether experts may be missing and every policy has a rule (rules.h). Misses may then be
  /// served without the host, and layers captured (Engine::graph_needs).
  bool misses_by_rule() const;
  /// OK, or which part is missing or contradicts another. Checked by MakeStrategy and at open.
  absl::Status Validate() const;
};

/// Measurements of a model's routing by `moert-pack calibrate`, as initial values of strategies.
struct RoutingStatistics {
  struct Layer {
    std::vector<int64_t> selections = {};  // [E], tokens that chose the expert
    double cross_layer_accuracy = 0;       // share of the experts that the layer before predicts
    /// [E][scheme], in any unit: the model's loss over those tokens with the expert in the scheme.
    std::vector<double> loss = {};
  };
  std::string file = {};  // for messages
  MoeModelSpec model = {};
  std::vector<std::string> schemes = {};  // of `loss`, by name
  std::vector<Layer> layers = {};
};

/// The input of a StrategyBuilder.
struct StrategyContext {
  StrategyParams params = {};
  /// The file that the key `calibration` names, already read; null if none. Borrowed for the call.
  const RoutingStatistics* calibration = nullptr;
  std::optional<Promise> accepted = {};  // the weakest that the host accepts; empty: it did not say
};
using StrategyBuilder = std::function<absl::StatusOr<Strategy>(const StrategyContext&)>;

struct StrategyKey {
  std::string name = {};
  std::string help = {};  // ends with its default in parentheses
};
struct StrategyInfo {
  std::string name = {};
  std::string summary = {};            // one sentence
  std::vector<StrategyKey> keys = {};  // all that a spec may give; MakeStrategy refuses others
};

/// Adds a strategy for the rest of the process; thread-safe. Names and keys consist of a-z, 0-9,
/// '-' and '_', a letter first; InvalidArgument for others, a key given twice and a null builder,
/// AlreadyExists for a name that is taken. MakeStrategy, and so each engine that opens with the
/// strategy, calls the builder in its thread, several at once perhaps, with no lock held. It does
/// no I/O and must not throw. It lives as long as the process; so must what it refers to.
absl::Status RegisterStrategy(StrategyInfo info, StrategyBuilder builder);

/// Builds a strategy from its spec; reads the file that `calibration` names. Keys that are `auto`
/// go by `accepted`; the engine, not this, refuses a strategy that promises less. Thread-safe.
absl::StatusOr<Strategy> MakeStrategy(absl::string_view spec,
                                      std::optional<Promise> accepted = std::nullopt);

/// Built-in strategies in the documentation's order, then registered ones in theirs. Thread-safe.
std::vector<StrategyInfo> ListStrategies();

}  // namespace moert

#endif  // MOERT_STRATEGY_H_
