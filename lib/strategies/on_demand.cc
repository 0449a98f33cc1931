// on-demand: a miss is loaded, the least recently used expert of its layer leaves. The exact
// default.
#include "strategies/builtin.h"

namespace moert {

absl::StatusOr<Strategy> BuildOnDemand(const StrategyContext& context) {
  const StrategyParams& params = context.params;
  Strategy strategy;
  if (params.Has("scheme")) strategy.versions = {params.Text("scheme", "")};
  return strategy;
}

}  // namespace moert
