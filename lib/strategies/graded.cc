// graded: the importance of a miss decides its precision (combines importance paper Sec. 5 and
// DynaExq Sec. 4). A miss with a low routing weight is answered by the expert's low version, which
// stands by or is loaded in fewer bytes. An important miss waits for the high version, or is
// computed by a CPU if that is faster. The host sets the permitted loss: `loss`, the share of each
// request's routing mass that is answered low or substituted. The planner enforces it, whatever
// this policy answers. All of this is a rule, so a device that serves misses can carry it out.
#include "base/status_macros.h"
#include "plan/placement_rule.h"
#include "prefetch/prefetch_rule.h"
#include "store/residency/cache_policy.h"
#include "strategies/builtin.h"

namespace moert {

absl::StatusOr<Strategy> BuildGraded(const StrategyContext& context) {
  const StrategyParams& params = context.params;
  MOERT_ASSIGN_OR_RETURN(const bool wait, params.Flag("wait", true));
  if (!wait) return BuildNeverStall(params);
  MOERT_RETURN_IF_ERROR(
      RefuseKeys("graded", params, {"max_gbps", "n", "margin"}, "wait=1; they are of wait=0"));
  Strategy s;
  MOERT_ASSIGN_OR_RETURN(const bool standby, params.Flag("standby", false));
  s.serving = standby ? Serving::kCacheOverLow : Serving::kCache;
  s.versions = {params.Text("hi", "bf16"), params.Text("lo", "w2a16_g64_asym")};
  MOERT_ASSIGN_OR_RETURN(const double loss, params.Number("loss", 0.05, 0, 1));
  MOERT_ASSIGN_OR_RETURN(const double patience, params.Number("patience", 16, 1, 1e6));
  MOERT_ASSIGN_OR_RETURN(const double alpha, params.Number("alpha", 0.3, 0, 1));
  MOERT_ASSIGN_OR_RETURN(const double substituted, params.Number("substituted", 0.7, 0, 1));
  MOERT_ASSIGN_OR_RETURN(s.prefetch_control, params.Flag("control", true));
  const double to_substitutes = alpha > 0 ? substituted * loss : 0;
  if (alpha > 0) s.routing = MakeExpertCacheRouting(alpha, to_substitutes);
  s.prefetch = MakePrefetchPolicy({});
  MOERT_ASSIGN_OR_RETURN(const int64_t transient, params.Integer("transient", -1, 0, 1 << 20));
  s.residency = MakeCachePolicy({.kind = ResidencyRuleKind::kWorth,
                                 .shared_slots = !params.Has("transient"),
                                 .capacity = {.kind = CapacityRuleKind::kMeasured,
                                              .transient = static_cast<int>(transient)}});
  MOERT_ASSIGN_OR_RETURN(const bool shares, SharesMisses(context, true));
  PlacementRule placement{.max_low_share = loss - to_substitutes, .low_patience = patience};
  if (shares) {
    placement.balance = CpuBalance::kByCompletion;
    placement.backfills = true;
    // If the low version has to be loaded, it is not much faster than a CPU.
    placement.spares_low = !standby;
  }
  s.placement = MakePlacementPolicy(placement);
  return s;
}

}  // namespace moert
