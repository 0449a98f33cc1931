// The strategy `auto`: which strategy and versions fit a model, a budget and a machine, and why.
//
// `auto` (EngineOptions::strategy) loads every expert at open if the budget holds them all;
// otherwise `fate` serves them from a cache. On a device with slots for less than three quarters of
// the experts, the CPU then computes some misses (`cpu=1`): results are faithful. Results are exact
// if the host accepts only exact ones (EngineOptions::promise), or on the CPU backend.
//
// `auto:loss=X,calibration=FILE` accepts the loss of the share X of perplexity. It takes the
// version that is expected to be fastest among those whose loss the calibration predicts to be
// within X; among equally fast versions, the one that loses least.
//
// If no version is known to be within X, as without a calibration, it keeps to the version with the
// most bits. It may then choose `graded`, which answers at most the share X of each request's
// routing mass in a lower version. If every record lies in pinned host memory, a device answers its
// misses, and its steps can be captured.
//
// The cost model is that of the profile: a step takes its layers' time, plus the transfers of the
// misses expected of a cache with that many slots, as far as nothing hides them.
#ifndef MOERT_TOOLS_AUTO_STRATEGY_H_
#define MOERT_TOOLS_AUTO_STRATEGY_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "moert/options.h"
#include "moert/source/expert_source.h"

namespace moert {

struct Calibration;

struct StrategyChoice {
  std::string spec = {};  // the spec that an engine runs
  std::string why = {};   // one line for people
  /// The engine's budget in bytes. A share is taken of the experts as they would be served exactly,
  /// whatever version is chosen.
  Budget budget = {};
};

/// Whether a spec leaves the choice to ChooseStrategy.
bool IsAuto(absl::string_view spec);

/// The keys of a spec of `auto`.
struct AutoKeys {
  double loss = 0;
  std::string scheme = {};       // empty: the version of the most bits
  std::string calibration = {};  // a file; empty: none
};
/// InvalidArgument for other keys and for a loss that is not within 0 and 1.
absl::StatusOr<AutoKeys> ParseAuto(absl::string_view spec);

/// Resolves the strategy of `options` if it is `auto` with any keys; any other spec is returned as
/// it is. InvalidArgument like Engine::Plan if nothing fits the budget. Thread-safe.
absl::StatusOr<StrategyChoice> ChooseStrategy(const ExpertSource& source,
                                              const EngineOptions& options);

/// The same with a calibration that was read already: the file that the spec names is not opened.
absl::StatusOr<StrategyChoice> ChooseStrategy(const ExpertSource& source,
                                              const EngineOptions& options,
                                              const Calibration& calibration);

}  // namespace moert

#endif  // MOERT_TOOLS_AUTO_STRATEGY_H_
