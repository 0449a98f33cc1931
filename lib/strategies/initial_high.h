// Which experts are high from the start: a list in the strategy's spec, or those that a calibration
// file gives the most worth (DynaExq's offline frequency).
#ifndef MOERT_LIB_STRATEGIES_INITIAL_HIGH_H_
#define MOERT_LIB_STRATEGIES_INITIAL_HIGH_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/strategy.h"
#include "strategies/routing_statistics.h"

namespace moert {

class InitialHigh {
 public:
  /// By the keys `hot` and `calibration`, of which a spec has one at most. `weights`, [sum over
  /// layers of E]: what a selection of each expert counts; then the most worth of all layers are
  /// high. Empty: every layer's most selected ones.
  static absl::StatusOr<InitialHigh> Make(const StrategyContext& context,
                                          std::vector<double> weights = {});

  /// The answer to PrecisionPolicy::Decide at open. InvalidArgument when the calibration is of a
  /// model with other layers or experts.
  absl::StatusOr<PrecisionDecision> Choose(const PrecisionSnapshot& snapshot) const;
  /// Bytes that it holds.
  int64_t bytes() const {
    return static_cast<int64_t>(given_.size() * sizeof(ExpertKey) +
                                weights_.size() * sizeof(double)) +
           (calibration_.has_value() ? StatisticsBytes(*calibration_) : 0);
  }

 private:
  std::vector<ExpertKey> given_;
  std::optional<RoutingStatistics> calibration_;
  std::vector<double> weights_;
};

}  // namespace moert

#endif  // MOERT_LIB_STRATEGIES_INITIAL_HIGH_H_
