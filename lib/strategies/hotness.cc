#include "strategies/hotness.h"

#include <algorithm>
#include <cmath>

namespace moert {
namespace {

// Chance is believed up to this many standard deviations: of a few thousand experts about ten
// differ by more in an interval, and those are judged by what is recent, which is no harm.
constexpr double kChance = 3;

}  // namespace

Hotness::Hotness(double beta, double memory)
    : beta_(beta), long_beta_(1 - (1 - beta) / std::max(memory, 1.0)) {}

void Hotness::Add(absl::Span<const int64_t> counts) {
  recent_.resize(counts.size(), 0);
  lasting_.resize(counts.size(), 0);
  values_.resize(counts.size(), 0);
  // Of n counts weighed by (1 - beta) beta^i, with what they weigh together scaled to 1.
  weight_ = beta_ * weight_ + (1 - beta_);
  long_weight_ = long_beta_ * long_weight_ + (1 - long_beta_);
  variance_ = (1 - beta_) / (1 + beta_) * (2 - weight_) / weight_;
  const double chance = kChance * kChance * variance_;  // of a count of 1, squared
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto count = static_cast<double>(counts[i]);
    recent_[i] = beta_ * recent_[i] + (1 - beta_) * count;
    lasting_[i] = long_beta_ * lasting_[i] + (1 - long_beta_) * count;
    const double recent = recent_[i] / weight_;
    const double lasting = lasting_[i] / long_weight_;
    const double apart = recent - lasting;
    const bool by_chance = apart * apart <= chance * std::max(recent, lasting);
    values_[i] = by_chance ? (recent + lasting) / 2 : recent;
  }
}

double Hotness::Scatter(double sum) const { return std::sqrt(sum * variance_); }

}  // namespace moert
