#include "strategies/use_estimate.h"

#include <algorithm>

namespace moert {

UseEstimate::UseEstimate(int experts)
    : short_(experts, 0), long_(experts, 0), chosen_(experts, 0) {
  order_.reserve(experts);  // Observe allocates nothing
}

void UseEstimate::Observe(const RoutingView& routing) {
  const int experts = static_cast<int>(short_.size());
  if (routing.tokens == 0) return;
  ++calls_;
  const double short_weight = 1.0 / static_cast<double>(std::min<int64_t>(calls_, kShort));
  const double long_weight = 1.0 / static_cast<double>(std::min<int64_t>(calls_, kLong));
  const double tokens = static_cast<double>(routing.tokens);
  for (int e = 0; e < experts; ++e) {
    const double used = routing.counts[e] / tokens;
    double sample = used;
    if (!routing.scores.empty()) {  // a host that routes itself may give none
      double sum = 0;
      for (int64_t t = 0; t < routing.tokens; ++t) sum += routing.scores[t * experts + e];
      const double score = routing.top_k * sum / tokens;
      if (score == score) sample = (score + used) / 2;  // NaN would never leave the means
    }
    short_[e] += short_weight * (sample - short_[e]);
    long_[e] += long_weight * (sample - long_[e]);
    if (routing.counts[e] == 0) continue;
    if (chosen_[e] == 0) order_.push_back(e);
    chosen_[e] = calls_;
  }
  std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
    const double worth_a = Worth(a), worth_b = Worth(b);
    if (worth_a != worth_b) return worth_a > worth_b;
    return chosen_[a] != chosen_[b] ? chosen_[a] > chosen_[b] : a < b;
  });
}

}  // namespace moert
