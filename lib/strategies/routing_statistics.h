// The one place where a strategy spec reaches a file.
#ifndef MOERT_LIB_STRATEGIES_ROUTING_STATISTICS_H_
#define MOERT_LIB_STRATEGIES_ROUTING_STATISTICS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/strategy.h"

namespace moert {

/// Reads and checks a file of `moert-pack calibrate`. Errors name the path.
absl::StatusOr<RoutingStatistics> ReadRoutingStatistics(const std::string& path);

/// Bytes of memory that the statistics hold.
int64_t StatisticsBytes(const RoutingStatistics& statistics);

/// InvalidArgument when the statistics are of a model with other layers or experts.
absl::Status CheckSameModel(const RoutingStatistics& statistics, const MoeModelSpec& model);
/// The same for the model of any file.
absl::Status CheckSameModel(const std::string& file, const MoeModelSpec& theirs,
                            const MoeModelSpec& model);

/// The model's loss per token that selects an expert, in each of `versions`, in any unit, [sum over
/// layers of E][version]. An expert that few tokens selected is taken to be about as sensitive as
/// its layer. InvalidArgument if a version is not a calibrated scheme; bf16 loses nothing.
absl::StatusOr<std::vector<double>> LossPerSelection(const RoutingStatistics& statistics,
                                                     absl::Span<const std::string> versions);

/// Tokens that selected each expert, [sum over layers of E]; empty without statistics.
std::vector<double> SelectionsOf(const RoutingStatistics* statistics);

}  // namespace moert

#endif  // MOERT_LIB_STRATEGIES_ROUTING_STATISTICS_H_
