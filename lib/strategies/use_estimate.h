// UseEstimate: how often the next calls of a layer will want each of its experts, from what its
// gate said of all of them. An expert that nearly made it is likely to be wanted next (importance
// paper Sec. 5.3); how often it was chosen of late and over long says the rest.
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

  /// About the share of calls with one token that use the expert. The weights were fitted to
  /// recorded calls of two models over calibration texts.
  double Worth(int expert) const { return worth_[expert]; }

  /// The experts that were ever chosen, those worth most first; of equals the more recent.
  absl::Span<const int32_t> Order() const { return order_; }

  static constexpr int kLatest = 2, kRecent = 32, kLasting = 512;  // calls

 private:
  void SortOrder();

  int64_t calls_ = 0;
  std::vector<double> score_;             // [E], mean of k times the score over the latest calls
  std::vector<double> recent_, lasting_;  // [E], mean share of tokens that chose the expert
  std::vector<double> worth_;             // [E]
  std::vector<int64_t> chosen_;           // [E], the last call that did; 0: none
  std::vector<int32_t> order_;
};

}  // namespace moert

#endif  // MOERT_LIB_STRATEGIES_USE_ESTIMATE_H_
