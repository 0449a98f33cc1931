// A strategy is a named bundle of policies; a null policy means its default.
//
// Spec grammar: `name[:key=value,...]`, composed as `A+B.seam[:...]`: everything from A, that seam
// from B. The seams are routing, prefetch, residency, precision and placement. `A+B` takes every
// seam that B fills, and is an error where A fills it too. Unknown names, seams and keys are errors
// that list the legal ones, and a seam that would have no effect is an error that says why.
//
// A host adds strategies of its own with RegisterStrategy. They have names like the built-in ones
// and work wherever a spec does: in an engine, in replays, in compositions, in the tools.
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
  /// A cache: experts come and go, a miss waits (or is placed elsewhere).
  kCache = 0,
  /// Every expert is resident in one of two versions, or of up to four where the backend has blocks
  /// of several sizes (the CPU); the precision policy decides who is high.
  kHotSet = 1,
  /// Every expert is resident in the low version; what is left is a cache of high versions.
  kLowPlusCache = 2,
  /// A cache of the high version, as kCache, and beside it the low version of every expert, which
  /// answers the misses that the placement policy gives it (Placement::kLow).
  kCacheOverLow = 3,
};

struct Strategy {
  std::string spec = {};
  Serving serving = Serving::kCache;
  TransitionOptions transitions = {};
  /// kCache: every expert is loaded at open; a budget that cannot hold them is refused.
  bool preload = false;
  /// Names of the versions it serves, most bits first; empty: the source's first. All but
  /// kCache serve two, kHotSet two to four.
  std::vector<std::string> versions = {};
  /// Decode steps without prefetch are tried now and then; prefetch stays off while they are
  /// faster.
  bool prefetch_control = true;

  std::unique_ptr<RoutingPolicy> routing = {};      // null: the model's own top-k
  std::unique_ptr<PrefetchPolicy> prefetch = {};    // null: none
  std::unique_ptr<ResidencyPolicy> residency = {};  // null: LRU, uniform capacity
  std::unique_ptr<PrecisionPolicy> precision = {};  // null: fixed; required by kHotSet
  std::unique_ptr<PlacementPolicy> placement = {};  // null: load

  /// The weakest promise of its parts. Versions that change and answer for one another are lossy
  /// whatever the policies say; residency and prefetch decide where experts are, never what is
  /// computed, and do not count.
  Promise promise() const;
  /// Bit-identical output at any budget: no policy can change what is computed.
  bool exact() const { return promise() == Promise::kExact; }
  /// Whether every expert always has a usable version and no policy has to be asked while a layer
  /// runs. Layers can then be captured in a CUDA graph, if nothing else in the engine prevents it
  /// (Engine::graph_needs).
  bool graph_safe() const;
  /// Whether experts may be missing and every policy has a rule (rules.h). Misses may then be
  /// served without the host, and layers captured (Engine::graph_needs).
  bool misses_by_rule() const;
  /// OK, or an error that says which part is missing or contradicts another. Checked when a
  /// strategy is made and when an engine opens.
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
  /// The file that the key `calibration` names, already read; null without that key. Borrowed
  /// for the call.
  const RoutingStatistics* calibration = nullptr;
  /// The weakest promise that the host accepts; empty: it did not say.
  std::optional<Promise> accepted = {};
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

/// Adds a strategy for the rest of the process. Names and keys consist of a-z, 0-9, '-' and '_' and
/// begin with a letter; InvalidArgument for others, for a key given twice and for a null builder,
/// AlreadyExists for a name that is taken.
///
/// The builder is called by MakeStrategy, so whenever an engine opens with a spec that names the
/// strategy, in the calling thread and possibly in several at once, with no lock held. It does no
/// I/O and must not throw. It lives until the process ends: what it refers to must, too.
/// Thread-safe.
absl::Status RegisterStrategy(StrategyInfo info, StrategyBuilder builder);

/// Builds a strategy from its spec. Reads the file that a `calibration` key names. `accepted`: the
/// weakest promise that the host accepts, if it says one: keys that are `auto` go by it, and a
/// strategy that promises less is refused by the engine, not here. Thread-safe.
absl::StatusOr<Strategy> MakeStrategy(absl::string_view spec,
                                      std::optional<Promise> accepted = std::nullopt);

/// Every strategy: the built-in ones in the order of the documentation, then those registered, in
/// that order. Thread-safe.
std::vector<StrategyInfo> ListStrategies();

}  // namespace moert

#endif  // MOERT_STRATEGY_H_
