// never-stall: a low version of every expert is always resident and answers where the high one is
// missing; that one is fetched behind it. Misses cost a little quality, never time. The cache of
// high versions is run by the residency policy and fed by low answers and any prefetch policy.
#include "base/status_macros.h"
#include "strategies/builtin.h"

namespace moert {

absl::StatusOr<Strategy> BuildNeverStall(const Params& params) {
  Strategy s;
  s.serving = Serving::kLowPlusCache;
  s.exact = false;
  s.graph_safe = true;
  s.versions = {params.Text("hi", "bf16"), params.Text("lo", "w2a16_g64_asym")};
  MOERT_ASSIGN_OR_RETURN(s.transitions.max_gbps, params.Number("max_gbps", 0, 0, 1e6));
  return s;
}

}  // namespace moert
