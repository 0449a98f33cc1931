// The strategy `auto`: which strategy and versions fit a model, a budget and a machine, and why.
//
// `auto` (EngineOptions::strategy) loads every expert at open where the budget holds them all, else
// `fate` serves them from a cache. Beside a device, and with slots for less than three quarters of
// the experts, the CPU then computes some misses (`cpu=1`): results are faithful. Where the host
// accepts exact ones alone (EngineOptions::promise), or nothing stands beside the CPU, they are
// exact.
//
// `auto:loss=X,calibration=FILE` accepts that the share X of perplexity is lost. It takes the
// version that is expected to be fastest, among those whose loss the calibration predicts to be
// within it; among versions as fast, the one that loses least.
//
// Where no version is known to be within X, so without a calibration, it keeps to the version of
// the most bits. It may then choose `graded`, which answers at most the share X of each request's
// routing mass in a lower version. Where every record lies in pinned host memory, a device
// answers its misses, and its steps can be captured.
//
// The cost model is that of the profile: a step takes its layers' time, and the transfers of the
// misses that a cache of so many slots is expected to have and that nothing hides.
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
  std::string spec = {};  // what an engine runs
  std::string why = {};   // one line for people
  /// The engine's budget in bytes: a share is of the experts as they would be served exactly, in
  /// whatever version they are.
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

/// The outcome of `options`, whose strategy is `auto` with any keys. Any other spec comes back as
/// it is. InvalidArgument as Engine::Plan, where nothing fits the budget. Thread-safe.
absl::StatusOr<StrategyChoice> ChooseStrategy(const ExpertSource& source,
                                              const EngineOptions& options);

/// The same where the calibration has been read: the file that the spec names is not opened.
absl::StatusOr<StrategyChoice> ChooseStrategy(const ExpertSource& source,
                                              const EngineOptions& options,
                                              const Calibration& calibration);

}  // namespace moert

#endif  // MOERT_TOOLS_AUTO_STRATEGY_H_
