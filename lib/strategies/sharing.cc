// The key `cpu`: misses shared between the link and a CPU beside a device. Two processors round
// differently, so a strategy that shares is faithful, not exact.
#include "base/status_macros.h"
#include "plan/placement_rule.h"
#include "strategies/builtin.h"

namespace moert {

StrategyKey CpuKey() {
  return {"cpu",
          "misses shared with a CPU beside a GPU: 1 (so that link and CPU end earliest; results are "
          "then faithful, not exact), 0 (all are loaded) or auto (1 where the host accepts a "
          "faithful promise) (auto)"};
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
