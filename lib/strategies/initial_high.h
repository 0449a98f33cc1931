// Which experts are high from the start: a list in the strategy's spec, or the most selected ones
// of a calibration file (DynaExq's offline frequency).
#ifndef MOERT_LIB_STRATEGIES_INITIAL_HIGH_H_
#define MOERT_LIB_STRATEGIES_INITIAL_HIGH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/policy.h"
#include "strategies/params.h"

namespace moert {

class InitialHigh {
 public:
  /// Reads keys `hot` and `calibration`, of which a spec has one at most, and the calibration file.
  static absl::StatusOr<InitialHigh> FromParams(const Params& params);

  /// As PrecisionPolicy::Initial. InvalidArgument when the calibration is of a model with other
  /// layers or experts.
  absl::StatusOr<std::vector<ExpertKey>> Choose(const MoeModelSpec& model,
                                                absl::Span<const int32_t> capacity) const;

 private:
  std::vector<ExpertKey> given_;
  std::string calibration_;                       // its path; empty: none
  std::vector<std::vector<int64_t>> selections_;  // [layer][expert] of the calibration
};

}  // namespace moert

#endif  // MOERT_LIB_STRATEGIES_INITIAL_HIGH_H_
