// The strategy `auto`: which strategy and versions fit a model, a budget and a machine, and why.
//
// `auto` (EngineOptions::strategy) is exact: every expert is loaded at open where the budget holds
// them all, else `fate` serves them from a cache. `auto:loss=X` may also choose `graded`, which
// answers at most the share X of each request's routing mass in a lower version of the pack, where
// the cost model expects that to be faster.
//
// The cost model is that of the profile: a step takes its layers' time, and the transfers of the
// misses that a cache of so many slots is expected to have and that nothing hides.
#ifndef MOERT_AUTO_STRATEGY_H_
#define MOERT_AUTO_STRATEGY_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "moert/expert_source.h"
#include "moert/options.h"

namespace moert {

struct StrategyChoice {
  std::string spec;  // what an engine runs
  std::string why;   // one line for people
};

/// Whether a spec leaves the choice to ChooseStrategy.
bool IsAuto(absl::string_view spec);

/// What `options`, whose strategy is `auto[:loss=X,scheme=NAME]`, come to. Any other spec comes
/// back as it is. InvalidArgument as Engine::Plan, where nothing fits the budget. Thread-safe.
absl::StatusOr<StrategyChoice> ChooseStrategy(const ExpertSource& source,
                                              const EngineOptions& options);

}  // namespace moert

#endif  // MOERT_AUTO_STRATEGY_H_
