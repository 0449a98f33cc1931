#include "store/residency/use_estimate.h"

namespace moert {

UseEstimate::UseEstimate(int experts) : use_(experts), worth_(experts, 0) {
  order_.reserve(experts);  // Observe allocates nothing
}

void UseEstimate::Observe(const RoutingView& routing) {
  const int experts = static_cast<int>(use_.size());
  if (routing.tokens == 0) return;
  ++calls_;
  const auto call = ExpertUse::Call::Of(calls_, routing.tokens);
  for (int e = 0; e < experts; ++e) {
    double scores = routing.counts[e];
    if (!routing.scores.empty()) {  // a host that routes itself may give none
      double sum = 0;
      for (int64_t t = 0; t < routing.tokens; ++t) sum += routing.scores[t * experts + e];
      scores = routing.top_k * sum;
    }
    if (routing.counts[e] > 0 && use_[e].chosen == 0) order_.push_back(e);
    use_[e].Add(call, routing.counts[e], scores);
    worth_[e] = use_[e].Worth();
  }
  SortOrder();
}

void UseEstimate::Resume(int64_t calls, absl::Span<const ExpertUse> use) {
  calls_ = calls;
  for (size_t e = 0; e < use_.size(); ++e) {
    if (use[e].chosen > 0 && use_[e].chosen == 0) order_.push_back(static_cast<int32_t>(e));
    use_[e] = use[e];
    worth_[e] = use_[e].Worth();
  }
  SortOrder();
}

void UseEstimate::SortOrder() {
  const auto before = [&](int32_t a, int32_t b) {
    if (worth_[a] != worth_[b]) return worth_[a] > worth_[b];
    return use_[a].chosen != use_[b].chosen ? use_[a].chosen > use_[b].chosen : a < b;
  };
  // Insertion sort: one call moves few experts far.
  for (auto it = order_.begin(); it != order_.end(); ++it) {
    const int32_t e = *it;
    auto at = it;
    for (; at != order_.begin() && before(e, *(at - 1)); --at) *at = *(at - 1);
    *at = e;
  }
}

}  // namespace moert
