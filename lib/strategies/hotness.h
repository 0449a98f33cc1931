// How hot experts are: selections an update interval, estimated from counts that chance moves.
#ifndef MOERT_LIB_STRATEGIES_HOTNESS_H_
#define MOERT_LIB_STRATEGIES_HOTNESS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace moert {

/// An exponential mean of the counts (DynaExq Sec. 4.2: h = beta h + (1 - beta) c), and, beside it,
/// one that remembers `memory` times longer. A short memory follows a change of the workload and
/// every accident with it; a long one does neither. Which of the two is before us the counts can
/// tell: as long as chance explains the difference of both means, their average is the better
/// estimate of the same rate; beyond that the rate has changed, and the recent mean stands alone.
///
/// Both means are divided by the weight that they have seen, so that they say selections an
/// interval from the first one on.
class Hotness {
 public:
  /// beta in [0, 1), memory >= 1; 1: the recent mean alone. `prior`: how often each expert was
  /// selected elsewhere, in any unit, which is what the long mean begins with; or empty.
  Hotness(double beta, double memory, std::vector<double> prior = {});
  static constexpr int64_t kBytesPerExpert = 4 * sizeof(double);

  /// The counts of one more interval, the same experts each time.
  void Add(absl::Span<const int64_t> counts);

  /// [experts], selections an interval. Before the first: the prior.
  absl::Span<const double> values() const { return values_; }
  /// Standard deviation by chance of the sum of values that add up to `sum`: independent selections
  /// scatter like Poisson's, and the recent mean of them by a fixed share of that variance.
  double Scatter(double sum) const;

 private:
  const double beta_;
  const double long_beta_;
  double variance_ = 1;        // of the recent mean, as a share of that of one interval's count
  double weight_ = 0;          // that the recent mean has seen, up to 1
  double long_weight_ = 0;     // likewise
  std::vector<double> prior_;  // until there are counts to scale it by
  std::vector<double> recent_, lasting_, values_;
};

}  // namespace moert

#endif  // MOERT_LIB_STRATEGIES_HOTNESS_H_
