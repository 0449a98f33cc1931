// resident: every expert is loaded at open; the bound every other strategy is measured against.
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
