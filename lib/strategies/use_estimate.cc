#include "strategies/use_estimate.h"

#include <algorithm>

namespace moert {

UseEstimate::UseEstimate(int experts)
    : score_(experts, 0),
      recent_(experts, 0),
      lasting_(experts, 0),
      worth_(experts, 0),
      chosen_(experts, 0) {
  order_.reserve(experts);  // Observe allocates nothing
}

void UseEstimate::Observe(const RoutingView& routing) {
  const int experts = static_cast<int>(score_.size());
  if (routing.tokens == 0) return;
  ++calls_;
  const auto weight = [&](int calls) {
    return 1.0 / static_cast<double>(std::min<int64_t>(calls_, calls));
  };
  const double latest = weight(kLatest), recent = weight(kRecent), lasting = weight(kLasting);
  const double tokens = static_cast<double>(routing.tokens);
  for (int e = 0; e < experts; ++e) {
    const double used = routing.counts[e] / tokens;
    double score = used;
    if (!routing.scores.empty()) {  // a host that routes itself may give none
      double sum = 0;
      for (int64_t t = 0; t < routing.tokens; ++t) sum += routing.scores[t * experts + e];
      if (sum == sum) score = routing.top_k * sum / tokens;  // NaN would never leave the mean
    }
    score_[e] += latest * (score - score_[e]);
    recent_[e] += recent * (used - recent_[e]);
    lasting_[e] += lasting * (used - lasting_[e]);
    if (routing.counts[e] == 0) continue;
    if (chosen_[e] == 0) order_.push_back(e);
    chosen_[e] = calls_;
  }
  for (int e = 0; e < experts; ++e) {
    worth_[e] = 0.3 * score_[e] + 0.4 * recent_[e] + 0.3 * lasting_[e];
  }
  SortOrder();
}

void UseEstimate::SortOrder() {
  const auto before = [&](int32_t a, int32_t b) {
    if (worth_[a] != worth_[b]) return worth_[a] > worth_[b];
    return chosen_[a] != chosen_[b] ? chosen_[a] > chosen_[b] : a < b;
  };
  // By insertion: one call moves few experts far.
  for (auto it = order_.begin(); it != order_.end(); ++it) {
    const int32_t e = *it;
    auto at = it;
    for (; at != order_.begin() && before(e, *(at - 1)); --at) *at = *(at - 1);
    *at = e;
  }
}

}  // namespace moert
