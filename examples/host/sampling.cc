#include "host/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "util/status_macros.h"

namespace moert::host {

absl::StatusOr<int32_t> ArgMax(absl::Span<const float> logits) {
  int32_t best = -1;
  float highest = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) {
      return absl::InternalError("the model's logits are not numbers (NaN)");
    }
    if (logits[i] > highest) {
      highest = logits[i];
      best = static_cast<int32_t>(i);
    }
  }
  if (best < 0 || std::isinf(highest)) {
    return absl::InternalError("the model's logits are not finite");
  }
  return best;
}

double LogSumExp(absl::Span<const float> logits) {
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(logit - max);
  return std::log(sum) + max;
}

absl::StatusOr<int32_t> Sampler::Next(absl::Span<const float> logits) {
  MOERT_ASSIGN_OR_RETURN(const int32_t best, ArgMax(logits));
  if (temperature_ <= 0.0) return best;
  weights_.resize(logits.size());
  double total = 0.0;
  for (size_t i = 0; i < logits.size(); ++i) {
    weights_[i] = std::exp((double{logits[i]} - logits[best]) / temperature_);
    total += weights_[i];
  }
  // 53 random bits in [0, 1): the standard distributions differ between libraries.
  double rest = static_cast<double>(random_() >> 11) * 0x1.0p-53 * total;
  for (size_t i = 0; i < logits.size(); ++i) {
    rest -= weights_[i];
    if (rest < 0.0) return static_cast<int32_t>(i);
  }
  return best;  // rounding left a rest
}

}  // namespace moert::host
