// The built-in strategies, one readable file each. A new one: write its file, declare its builder
// here, add its row to registry.cc.
#ifndef MOERT_LIB_STRATEGIES_BUILTIN_H_
#define MOERT_LIB_STRATEGIES_BUILTIN_H_

#include <memory>

#include "absl/status/statusor.h"
#include "moert/strategy.h"
#include "strategies/params.h"

namespace moert {

absl::StatusOr<Strategy> BuildResident(const Params& params);
absl::StatusOr<Strategy> BuildOnDemand(const Params& params);
absl::StatusOr<Strategy> BuildLoadOnDemand(const Params& params);
absl::StatusOr<Strategy> BuildActivationPath(const Params& params);
absl::StatusOr<Strategy> BuildFate(const Params& params);
absl::StatusOr<Strategy> BuildDynaExq(const Params& params);
absl::StatusOr<Strategy> BuildNeverStall(const Params& params);
absl::StatusOr<Strategy> BuildStaticMixed(const Params& params);

absl::StatusOr<Strategy> BuildImportance(const Params& params);
absl::StatusOr<Strategy> BuildCpuSplit(const Params& params);
absl::StatusOr<Strategy> BuildHybriMoeLike(const Params& params);
absl::StatusOr<Strategy> BuildExpertFlowLike(const Params& params);

std::unique_ptr<ResidencyPolicy> MakeLru();
/// Lowest average score over the last `window` iterations leaves. `entry_margin` >= 0: and only for
/// a prefetched one whose average is higher by that share.
std::unique_ptr<ResidencyPolicy> MakeAverageScore(int window, double entry_margin = -1);
/// Next layer's predicted top-score experts; alpha = 0: its predicted actives. `resident_forward`:
/// predicted from the partial output where the host offers it.
std::unique_ptr<PrefetchPolicy> MakeTopScorePrefetch(float alpha, bool resident_forward);
struct CpuBalanceOptions {
  bool by_completion = false;  // else Algorithm 2 of the importance paper
  bool fill = false;           // bring what the CPU computed while the link is idle
};
/// Misses shared between the link and a CPU executor (plan/balancer.h).
std::unique_ptr<PlacementPolicy> MakeCpuLoadBalancer(const CpuBalanceOptions& options);

}  // namespace moert

#endif  // MOERT_LIB_STRATEGIES_BUILTIN_H_
