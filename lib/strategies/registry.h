// The table behind RegisterStrategy.
#ifndef MOERT_LIB_STRATEGIES_REGISTRY_H_
#define MOERT_LIB_STRATEGIES_REGISTRY_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "moert/strategy.h"

namespace moert {

/// One entry of the table.
struct RegisteredStrategy {
  StrategyInfo info;
  StrategyBuilder builder;
};

/// Builds a strategy from `name[:key=value,...]`, without composition.
absl::StatusOr<Strategy> BuildOne(const std::string& spec, std::optional<Promise> accepted);

}  // namespace moert

#endif  // MOERT_LIB_STRATEGIES_REGISTRY_H_
