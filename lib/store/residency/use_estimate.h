// UseEstimate: how often the next calls of a layer will want each of its experts. It uses the
// gate's scores of all experts, because one that was nearly chosen is likely to be wanted next
// (importance paper Sec. 5.3), and how often each was chosen recently and over a long time.
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

  /// Adds a layer call's routing. A call counts once, whatever its tokens: they are averaged.
  void Observe(const RoutingView& routing);

  /// See ExpertUse.
  double Worth(int expert) const { return worth_[expert]; }

  /// The experts that were ever chosen, those worth most first; among equals the more recent first.
  absl::Span<const int32_t> Order() const { return order_; }

  /// The state after `calls` calls, use [E], with which a device continues; Resume takes it back.
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
