#include "strategies/hotness.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace moert {
namespace {

// Differences up to this many standard deviations count as noise. Out of a few thousand experts
// about ten differ by more in an interval; using their recent mean alone does no harm.
constexpr double kChance = 3;

}  // namespace

Hotness::Hotness(double beta, double memory, std::vector<double> prior)
    : beta_(beta),
      long_beta_(1 - (1 - beta) / std::max(memory, 1.0)),
      prior_(std::move(prior)),
      values_(prior_) {}

void Hotness::Add(absl::Span<const int64_t> counts) {
  recent_.resize(counts.size(), 0);
  lasting_.resize(counts.size(), 0);
  values_.resize(counts.size(), 0);
  const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  const double prior_total = std::accumulate(prior_.begin(), prior_.end(), 0.0);
  if (prior_.size() == counts.size() && total > 0 && prior_total > 0) {
    const double scale = total / prior_total;
    for (size_t i = 0; i < counts.size(); ++i) lasting_[i] = scale * prior_[i];
    long_weight_ = 1;
    prior_.clear();
  }
  // Weights n counts by (1 - beta) beta^i, with the total weight scaled to 1.
  weight_ = beta_ * weight_ + (1 - beta_);
  long_weight_ = long_beta_ * long_weight_ + (1 - long_beta_);
  variance_ = (1 - beta_) / (1 + beta_) * (2 - weight_) / weight_;
  const double chance = kChance * kChance * variance_;  // squared limit for a count of 1
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
