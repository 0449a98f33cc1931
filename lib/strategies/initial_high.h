// InitialHigh: the experts that are high from the start. They are listed in the strategy's spec, or
// are those worth most by a calibration file (DynaExq's offline frequency).
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
  /// Reads the keys `hot` and `calibration`, of which a spec has at most one. `weights`, [sum over
  /// layers of E]: the weight of a selection of each expert; the experts worth most across all
  /// layers are then high. Empty: the most selected experts of every layer are.
  static absl::StatusOr<InitialHigh> Make(const StrategyContext& context,
                                          std::vector<double> weights = {});

  /// The answer to PrecisionPolicy::Decide at open. InvalidArgument when the calibration is of a
  /// model with other layers or experts.
  absl::StatusOr<PrecisionDecision> Choose(const PrecisionSnapshot& snapshot) const;
  /// Bytes of memory that this object holds.
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
