#include "strategies/transition_keys.h"

#include "base/status_macros.h"
#include "strategies/routing_statistics.h"

namespace moert {

absl::StatusOr<TransitionOptions> ReadTransitions(const StrategyParams& params) {
  TransitionOptions options;
  MOERT_ASSIGN_OR_RETURN(const double interval_ms, params.Number("interval_ms", 200, 0.001, 1e7));
  options.interval_ns = static_cast<int64_t>(interval_ms * 1e6);
  MOERT_ASSIGN_OR_RETURN(options.hi_fraction, params.Number("hi_fraction", -1, 0, 1));
  MOERT_ASSIGN_OR_RETURN(const int64_t spare, params.Integer("spare", 0, 1, 1 << 20));
  options.spare = static_cast<int>(spare);
  MOERT_ASSIGN_OR_RETURN(options.max_gbps, params.Number("max_gbps", 0, 0, 1e6));
  return options;
}

absl::StatusOr<Hotness> ReadHotness(const StrategyContext& context) {
  MOERT_ASSIGN_OR_RETURN(const double beta, context.params.Number("beta", 0.85, 0, 0.999999));
  MOERT_ASSIGN_OR_RETURN(const double memory, context.params.Number("memory", 8, 1, 1e6));
  return Hotness(beta, memory, SelectionsOf(context.calibration));
}

}  // namespace moert
