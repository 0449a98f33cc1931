// UseEstimate: how often the next calls of a layer will want each of its experts, from what its
// gate said of all of them. An expert that nearly made it is likely to be wanted next (importance
// paper Sec. 5.3); how often it was chosen of late and over long says the rest.
#ifndef MOERT_LIB_STORE_RESIDENCY_USE_ESTIMATE_H_
#define MOERT_LIB_STORE_RESIDENCY_USE_ESTIMATE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "moert/policy.h"
#include "rules/expert_use.h"

namespace moert {

class UseEstimate {
 public:
  explicit UseEstimate(int experts);
  static constexpr int64_t kBytesPerExpert =
      sizeof(ExpertUse) + sizeof(double) + sizeof(int32_t);

  /// A layer call's routing. One call counts once, whatever its tokens: what they say is averaged.
  void Observe(const RoutingView& routing);

  /// See ExpertUse.
  double Worth(int expert) const { return worth_[expert]; }

  /// The experts that were ever chosen, those worth most first; of equals the more recent.
  absl::Span<const int32_t> Order() const { return order_; }

  /// Its state, for somebody else to go on with, and back: [E], after `calls` calls.
  int64_t calls() const { return calls_; }
  absl::Span<const ExpertUse> use() const { return use_; }
  void Resume(int64_t calls, absl::Span<const ExpertUse> use);

 private:
  void SortOrder();

  int64_t calls_ = 0;
  std::vector<ExpertUse> use_;  // [E]
  std::vector<double> worth_;   // [E]
  std::vector<int32_t> order_;
};

}  // namespace moert

#endif  // MOERT_LIB_STORE_RESIDENCY_USE_ESTIMATE_H_
