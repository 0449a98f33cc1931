// The one place where a strategy spec reaches a file.
#ifndef MOERT_LIB_STRATEGIES_ROUTING_STATISTICS_H_
#define MOERT_LIB_STRATEGIES_ROUTING_STATISTICS_H_

#include <string>

#include "absl/status/statusor.h"
#include "moert/strategy.h"

namespace moert {

/// Reads and checks a file of `moert-pack calibrate`. Errors name the path.
absl::StatusOr<RoutingStatistics> ReadRoutingStatistics(const std::string& path);

}  // namespace moert

#endif  // MOERT_LIB_STRATEGIES_ROUTING_STATISTICS_H_
