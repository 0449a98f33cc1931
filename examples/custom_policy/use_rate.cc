#include "use_rate.h"

void UseRate::Observe(const moert::LayerEvent& event) {
  if (event.kind != moert::LayerEvent::Kind::kRouted) return;
  rates_.resize(event.context.model->layers.size());
  std::vector<double>& rates = rates_[event.context.layer];
  const absl::Span<const int32_t> counts = event.routing.counts;
  rates.resize(counts.size());
  for (size_t e = 0; e < rates.size(); ++e) {
    rates[e] = decay_ * rates[e] + (1 - decay_) * (counts[e] > 0 ? 1 : 0);
  }
}

int UseRate::Victim(const moert::VictimSnapshot& snapshot) {
  int victim = 0;
  double lowest = 2;
  for (size_t i = 0; i < snapshot.candidates.size(); ++i) {
    const moert::ExpertKey key = snapshot.candidates[i].key;
    const std::vector<double>& rates = rates_[key.layer];
    const double rate = rates.empty() ? 0 : rates[key.expert];  // brought by a prefetch, unseen
    if (rate < lowest) {
      lowest = rate;
      victim = static_cast<int>(i);
    }
  }
  return victim;
}
