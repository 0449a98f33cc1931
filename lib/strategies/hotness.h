// Hotness: the selections of each expert per update interval, estimated from noisy counts.
#ifndef MOERT_LIB_STRATEGIES_HOTNESS_H_
#define MOERT_LIB_STRATEGIES_HOTNESS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace moert {

/// Combines an exponential mean of the counts (DynaExq Sec. 4.2: h = beta h + (1 - beta) c) with
/// one that remembers `memory` times longer. A short memory follows changes of the workload, but
/// also noise; a long one follows neither. The counts show which applies: as long as noise explains
/// the difference of both means, their average is the better estimate of the same rate. Beyond that
/// the rate has changed, and the recent mean is used alone.
///
/// Both means are divided by the weight of their samples, so that they are selections per interval
/// from the first interval on.
class Hotness {
 public:
  /// beta in [0, 1), memory >= 1; 1: the recent mean alone. `prior`: how often each expert was
  /// selected elsewhere, in any unit, as the start value of the long mean; may be empty.
  Hotness(double beta, double memory, std::vector<double> prior = {});
  static constexpr int64_t kBytesPerExpert = 4 * sizeof(double);

  /// Adds the counts of one interval, for the same experts each time.
  void Add(absl::Span<const int64_t> counts);

  /// [experts], selections per interval. Before the first interval: the prior.
  absl::Span<const double> values() const { return values_; }
  /// The standard deviation, due to noise, of values that add up to `sum`: independent selections
  /// are Poisson distributed, and the recent mean has a fixed share of their variance.
  double Scatter(double sum) const;

 private:
  const double beta_;
  const double long_beta_;
  double variance_ = 1;        // of the recent mean, as a share of the variance of one count
  double weight_ = 0;          // total weight of the recent mean's samples, up to 1
  double long_weight_ = 0;     // likewise for the long mean
  std::vector<double> prior_;  // kept until there are counts to scale it by
  std::vector<double> recent_, lasting_, values_;
};

}  // namespace moert

#endif  // MOERT_LIB_STRATEGIES_HOTNESS_H_
