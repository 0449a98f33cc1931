// The built-in strategies, one readable file each, made of rules (moert/rules.h). To add a
// strategy: write its file, declare its builder here, add its entry to builtin.cc.
#ifndef MOERT_LIB_STRATEGIES_BUILTIN_H_
#define MOERT_LIB_STRATEGIES_BUILTIN_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "moert/policy.h"
#include "moert/strategy.h"
#include "strategies/hotness.h"
#include "strategies/registry.h"

namespace moert {

/// In the order of the documentation.
std::vector<RegisteredStrategy> BuiltinStrategies();

/// `auto` when the budget is not known: the exact cache (moert/tools/auto_strategy.h).
absl::StatusOr<Strategy> BuildAuto(const StrategyContext& context);
absl::StatusOr<Strategy> BuildResident(const StrategyContext& context);
absl::StatusOr<Strategy> BuildOnDemand(const StrategyContext& context);
absl::StatusOr<Strategy> BuildFate(const StrategyContext& context);
absl::StatusOr<Strategy> BuildImportance(const StrategyContext& context);
absl::StatusOr<Strategy> BuildGraded(const StrategyContext& context);
absl::StatusOr<Strategy> BuildDynaExq(const StrategyContext& context);
/// graded:wait=0.
absl::StatusOr<Strategy> BuildNeverStall(const StrategyParams& params);
/// dynaexq:versions=.
absl::StatusOr<Strategy> BuildMovingPlan(const StrategyContext& context);

/// InvalidArgument if one of `keys` is given together with `setting`, with which it has no effect.
absl::Status RefuseKeys(absl::string_view strategy, const StrategyParams& params,
                        std::initializer_list<const char*> keys, absl::string_view setting);

/// The key `cpu` of strategies that cache: whether misses are shared with a CPU beside a device.
StrategyKey CpuKey();
/// The value of that key. `auto` shares misses if the host accepts the promise "faithful";
/// `otherwise` applies if the host states no promise.
absl::StatusOr<bool> SharesMisses(const StrategyContext& context, bool otherwise);
/// The placement that shares misses so that link and CPU end earliest; null: they are not shared.
absl::StatusOr<std::unique_ptr<PlacementPolicy>> BuildSharing(const StrategyContext& context);

/// The expert-cache rule in decode, with the displaced weight bounded for every request.
std::unique_ptr<RoutingPolicy> MakeExpertCacheRouting(double alpha, double max_mass_share);

/// Keys of strategies in which every expert is resident and versions move online: `interval_ms`,
/// `hi_fraction`, `spare` and `max_gbps`.
absl::StatusOr<TransitionOptions> ReadTransitions(const StrategyParams& params);

/// Reads the keys `beta` and `memory`; the prior comes from the calibration.
absl::StatusOr<Hotness> ReadHotness(const StrategyContext& context);

/// Transfers in the right number of bits (Fate Sec. 4.5), as a precision policy of a cache that
/// serves two versions.
///
/// Prefill loads the least popular experts of a layer, those that together serve at most a share
/// rho of its token x expert pairs, in the low version. The others, and all experts that decode
/// loads, come in the high version (with `miss_low` except for the misses that a decode step waits
/// for). Prefill treats low copies like high ones. Decode does not, or it would use them for as
/// long as they are popular: it uses them once, and after that call (`upgrade`) the high version
/// takes their block, at the lowest priority.
struct HybridBitsOptions {
  double rho = 0.1;  // in [0, 1]
  bool miss_low = false;
  bool upgrade = true;
};

/// Whether `expert` is among those with the fewest `counts` [E] whose sum is at most the share rho
/// of the total. Among equals the higher index counts as less popular. False if all counts are
/// zero.
bool AmongLeastPopular(absl::Span<const int32_t> counts, int expert, double rho);

std::unique_ptr<PrecisionPolicy> MakeHybridBits(const HybridBitsOptions& options);

}  // namespace moert

#endif  // MOERT_LIB_STRATEGIES_BUILTIN_H_
