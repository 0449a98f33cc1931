// on-demand: a miss is loaded, the least recently used expert of its layer leaves. The exact
// default; with cpu=1 a CPU computes some misses, and it is faithful.
#include "base/status_macros.h"
#include "strategies/builtin.h"

namespace moert {

absl::StatusOr<Strategy> BuildOnDemand(const StrategyContext& context) {
  const StrategyParams& params = context.params;
  Strategy strategy;
  if (params.Has("scheme")) strategy.versions = {params.Text("scheme", "")};
  MOERT_ASSIGN_OR_RETURN(strategy.placement, BuildSharing(context));
  return strategy;
}

}  // namespace moert
