// The built-in strategies and the policies they are made of, one readable file each. To add a
// strategy: write its file, declare its builder here, add its entry to builtin.cc.
#ifndef MOERT_LIB_STRATEGIES_BUILTIN_H_
#define MOERT_LIB_STRATEGIES_BUILTIN_H_

#include <initializer_list>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "moert/strategy.h"
#include "strategies/registry.h"

namespace moert {

/// In the order of the documentation.
std::vector<RegisteredStrategy> BuiltinStrategies();

/// What `auto` is where nobody knows the budget: the exact cache (moert/auto_strategy.h).
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

/// InvalidArgument where one of `keys` is given, beside `setting`, under which it has no effect.
absl::Status RefuseKeys(absl::string_view strategy, const StrategyParams& params,
                        std::initializer_list<const char*> keys, absl::string_view setting);

std::unique_ptr<ResidencyPolicy> MakeLru();
/// The lowest average score over the last `window` iterations leaves. `entry_margin` >= 0: only for
/// a prefetched expert whose average is higher by that share.
std::unique_ptr<ResidencyPolicy> MakeAverageScore(int window, double entry_margin = -1);
/// The expert-cache rule in decode, displaced weight bounded for every request.
std::unique_ptr<RoutingPolicy> MakeExpertCacheRouting(double alpha, double max_mass_share);
/// The next layer's predicted top-score experts; alpha = 0: its predicted actives.
/// `resident_forward`: predicted from the partial output where the host can.
std::unique_ptr<PrefetchPolicy> MakeTopScorePrefetch(float alpha, bool resident_forward);
struct CpuBalanceOptions {
  bool by_completion = false;  // else Algorithm 2 of the importance paper
  bool fill = false;           // bring in what the CPU computed while the link is idle
};
/// Misses shared between the link and a CPU executor (plan/balancer.h).
std::unique_ptr<PlacementPolicy> MakeCpuLoadBalancer(const CpuBalanceOptions& options);

}  // namespace moert

#endif  // MOERT_LIB_STRATEGIES_BUILTIN_H_
