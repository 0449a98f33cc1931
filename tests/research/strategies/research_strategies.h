// Strategies that exist to be compared with: what other systems do, and bounds. They are no part of
// the library; research programs and their tests register them, as a host registers its own.
#ifndef MOERT_TESTS_RESEARCH_STRATEGIES_RESEARCH_STRATEGIES_H_
#define MOERT_TESTS_RESEARCH_STRATEGIES_RESEARCH_STRATEGIES_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "moert/strategy.h"

namespace moert {

/// Registers all of them. The first call does; later ones return its result. Thread-safe.
absl::Status RegisterResearchStrategies();

absl::StatusOr<Strategy> BuildActivationPath(const StrategyContext& context);
absl::StatusOr<Strategy> BuildCpuSplit(const StrategyContext& context);
absl::StatusOr<Strategy> BuildHybriMoeLike(const StrategyContext& context);
absl::StatusOr<Strategy> BuildExpertFlowLike(const StrategyContext& context);
absl::StatusOr<Strategy> BuildExpertFlow2510Like(const StrategyContext& context);
absl::StatusOr<Strategy> BuildLoadOnDemand(const StrategyContext& context);
absl::StatusOr<Strategy> BuildMoeInfinityLike(const StrategyContext& context);
absl::StatusOr<Strategy> BuildStaticMixed(const StrategyContext& context);

}  // namespace moert

#endif  // MOERT_TESTS_RESEARCH_STRATEGIES_RESEARCH_STRATEGIES_H_
