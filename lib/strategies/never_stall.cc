// graded:wait=0: a low version of every expert is always resident and answers if the high version
// is missing, which is fetched afterwards. Misses cost a little quality, never time. The residency
// policy manages the cache of high versions, which is fed by low answers and any prefetch policy.
//
// As no call waits for a high version, one enters only if it is worth more than the one it
// replaces, by average score over many iterations. An LRU cache (`graded:wait=0+fate.residency` and
// the like are possible) would exchange experts at every token and hold few that are used again.
#include "base/status_macros.h"
#include "store/residency/cache_policy.h"
#include "strategies/builtin.h"

namespace moert {

absl::StatusOr<Strategy> BuildNeverStall(const StrategyParams& params) {
  MOERT_RETURN_IF_ERROR(RefuseKeys(
      "graded", params,
      {"standby", "transient", "loss", "patience", "alpha", "substituted", "cpu", "control"},
      "wait=0, where the low version answers every miss"));
  Strategy s;
  s.serving = Serving::kLowPlusCache;
  s.versions = {params.Text("hi", "bf16"), params.Text("lo", "w2a16_g64_asym")};
  MOERT_ASSIGN_OR_RETURN(s.transitions.max_gbps, params.Number("max_gbps", 0, 0, 1e6));
  MOERT_ASSIGN_OR_RETURN(const int64_t window, params.Integer("n", 256, 1, 4096));
  MOERT_ASSIGN_OR_RETURN(const double margin, params.Number("margin", 0.3, 0, 1e9));
  s.residency = MakeAverageScore(
      {.kind = ResidencyRuleKind::kAverageScore, .window = static_cast<int>(window)}, margin);
  return s;
}

}  // namespace moert
