#include "host/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

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

absl::Status SamplingOptions::Validate() const {
  const auto check = [](const char* name, double value, double low, double high) {
    if (value >= low && value <= high) return absl::OkStatus();
    return absl::InvalidArgumentError(
        fmt::format("{}: {} is not in {}..{}", name, value, low, high));
  };
  MOERT_RETURN_IF_ERROR(check("repetition-penalty", repetition_penalty, 0.01, 100));
  MOERT_RETURN_IF_ERROR(check("temperature", temperature, 0, 100));
  MOERT_RETURN_IF_ERROR(check("top-p", top_p, 0, 1));
  return check("min-p", min_p, 0, 1);
}

absl::StatusOr<int32_t> Sampler::Next(absl::Span<const float> logits,
                                      absl::Span<const int32_t> sequence) {
  if (options_.repetition_penalty != 1.0 && !sequence.empty()) {
    logits_.assign(logits.begin(), logits.end());
    const float penalty = static_cast<float>(options_.repetition_penalty);
    for (const int32_t token : sequence) {
      if (token < 0 || token >= static_cast<int64_t>(logits.size())) continue;
      // From the original logit: a token counts once, however often it occurs.
      const float logit = logits[static_cast<size_t>(token)];
      logits_[static_cast<size_t>(token)] = logit > 0 ? logit / penalty : logit * penalty;
    }
    logits = logits_;
  }
  MOERT_ASSIGN_OR_RETURN(const int32_t best, ArgMax(logits));
  if (options_.temperature <= 0.0) return best;
  weights_.resize(logits.size());
  double total = 0.0;
  for (size_t i = 0; i < logits.size(); ++i) {
    weights_[i] =
        std::exp((double{logits[i]} - logits[static_cast<size_t>(best)]) / options_.temperature);
    total += weights_[i];
  }
  if (options_.top_p < 1.0) {
    order_.resize(logits.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [this](int32_t a, int32_t b) {
      return weights_[static_cast<size_t>(a)] > weights_[static_cast<size_t>(b)];
    });
    double kept = 0.0;
    for (const int32_t token : order_) {
      double& weight = weights_[static_cast<size_t>(token)];
      if (kept > 0.0 && kept >= options_.top_p * total) {
        weight = 0.0;
      } else {
        kept += weight;
      }
    }
    total = kept;
  }
  if (options_.min_p > 0.0) {  // the likeliest one's weight is 1
    total = 0.0;
    for (double& weight : weights_) {
      if (weight < options_.min_p) weight = 0.0;
      total += weight;
    }
  }
  // 53 random bits in [0, 1): the standard distributions differ between libraries.
  double rest = static_cast<double>(random_() >> 11) * 0x1.0p-53 * total;
  for (size_t i = 0; i < logits.size(); ++i) {
    rest -= weights_[i];
    if (rest < 0.0) return static_cast<int32_t>(i);
  }
  return best;  // reached only by rounding
}

}  // namespace moert::host
