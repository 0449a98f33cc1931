// Keys that strategies share in which every expert is resident and versions move online.
#ifndef MOERT_LIB_STRATEGIES_TRANSITION_KEYS_H_
#define MOERT_LIB_STRATEGIES_TRANSITION_KEYS_H_

#include "absl/status/statusor.h"
#include "moert/strategy.h"
#include "strategies/hotness.h"

namespace moert {

/// `interval_ms`, `hi_fraction`, `spare` and `max_gbps`.
absl::StatusOr<TransitionOptions> ReadTransitions(const StrategyParams& params);

/// `beta` and `memory`; the prior is the calibration's.
absl::StatusOr<Hotness> ReadHotness(const StrategyContext& context);

}  // namespace moert

#endif  // MOERT_LIB_STRATEGIES_TRANSITION_KEYS_H_
