#include "use_rate.h"

void UseRate::OnRouting(const moert::PolicyContext& context, const moert::RoutingView& routing) {
  rates_.resize(context.model->layers.size());
  std::vector<double>& rates = rates_[context.layer];
  rates.resize(routing.counts.size());
  for (size_t e = 0; e < rates.size(); ++e) {
    rates[e] = decay_ * rates[e] + (1 - decay_) * (routing.counts[e] > 0 ? 1 : 0);
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
