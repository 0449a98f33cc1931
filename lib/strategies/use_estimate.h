// UseEstimate: how often the next calls of a layer will want each of its experts, from what its
// gate said of all of them. An expert that nearly made it is likely to be wanted next (importance
// paper Sec. 5.3), and one that was used says a little more than its score.
#ifndef MOERT_LIB_STRATEGIES_USE_ESTIMATE_H_
#define MOERT_LIB_STRATEGIES_USE_ESTIMATE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "moert/policy.h"

namespace moert {

class UseEstimate {
 public:
  explicit UseEstimate(int experts);

  /// A layer call's routing. One call counts once, whatever its tokens: what they say is averaged.
  void Observe(const RoutingView& routing);

  /// About the share of calls with one token that use the expert: half of it k times the mean
  /// score, half the share of tokens that chose it, each as the mean of a short and a long memory.
  double Worth(int expert) const { return (short_[expert] + long_[expert]) / 2; }

  /// The experts that were ever chosen, those worth most first; of equals the more recent.
  absl::Span<const int32_t> Order() const { return order_; }

  static constexpr int kShort = 8, kLong = 128;  // calls

 private:
  int64_t calls_ = 0;
  std::vector<double> short_, long_;  // [E]
  std::vector<int64_t> chosen_;       // [E], the last call that did; 0: none
  std::vector<int32_t> order_;
};

}  // namespace moert

#endif  // MOERT_LIB_STRATEGIES_USE_ESTIMATE_H_
