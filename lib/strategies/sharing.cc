// The key `cpu`: misses are shared between the link and a CPU beside a device. The two processors
// round differently, so such a strategy is faithful, not exact.
#include "base/status_macros.h"
#include "plan/placement_rule.h"
#include "strategies/builtin.h"

namespace moert {

StrategyKey CpuKey() {
  return {
      "cpu",
      "1: a CPU beside a GPU computes some misses, so that link and CPU end earliest (faithful); "
      "0: all are loaded; auto: 1 where the host accepts faithful results (auto)"};
}

absl::StatusOr<bool> SharesMisses(const StrategyContext& context, bool otherwise) {
  MOERT_ASSIGN_OR_RETURN(const int cpu, context.params.OneOf("cpu", 2, {"0", "1", "auto"}));
  if (cpu != 2) return cpu == 1;
  return context.accepted.has_value() ? *context.accepted >= Promise::kFaithful : otherwise;
}

absl::StatusOr<std::unique_ptr<PlacementPolicy>> BuildSharing(const StrategyContext& context) {
  MOERT_ASSIGN_OR_RETURN(const bool shares, SharesMisses(context, false));
  if (!shares) return nullptr;
  return MakePlacementPolicy({.balance = CpuBalance::kByCompletion, .backfills = true});
}

}  // namespace moert
