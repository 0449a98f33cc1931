// resident: every expert is loaded at open; the reference for every other strategy.
#include "strategies/builtin.h"

namespace moert {

absl::StatusOr<Strategy> BuildResident(const StrategyContext& context) {
  const StrategyParams& params = context.params;
  Strategy strategy;
  strategy.preload = true;
  if (params.Has("scheme")) strategy.versions = {params.Text("scheme", "")};
  return strategy;
}

}  // namespace moert
