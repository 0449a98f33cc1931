// How often predictions of a gate came true, by the ratio of the predicted score to the token's
// k-th best score; used on the host (prefetch/calibrated_gate.h) and on a device.
#ifndef MOERT_LIB_RULES_HIT_CURVE_H_
#define MOERT_LIB_RULES_HIT_CURVE_H_

#include <cstdint>
#include <cstring>

#include "rules/host_device.h"

namespace moert {

constexpr int kHitBins = 24;  // bins of log2(ratio), each 1/3 wide, centered at 0
constexpr double kHitMemory = 1024;

/// The bin of score / k-th best score = ratio.
MOERT_HOST_DEVICE inline int HitBin(float ratio) {
  if (!(ratio > 0)) return 0;
  uint32_t bits = 0;
  memcpy(&bits, &ratio, sizeof bits);
  const int exponent = static_cast<int>(bits >> 23) - 127;
  const uint32_t fraction = bits & ((1U << 23) - 1);
  constexpr uint32_t kThird = 2180376, kTwoThirds = 4927478;  // of 2^(1/3) and 2^(2/3), rounded up
  const int thirds = 3 * exponent + (fraction >= kThird ? 1 : 0) + (fraction >= kTwoThirds ? 1 : 0);
  const int bin = thirds + kHitBins / 2;
  return bin < 0 ? 0 : bin < kHitBins ? bin : kHitBins - 1;
}

/// The guessed probability that such a prediction comes true, before there are samples.
MOERT_HOST_DEVICE inline float GuessedHits(float ratio) {
  constexpr float kMost = 0.9F;
  if (ratio > 1e9F) return kMost;
  const float square = ratio * ratio;
  return kMost * square / (1 + square);
}

/// Counts of predictions in one bin, with a limited memory.
struct HitCounts {
  double used = 0, seen = 0;

  /// Adds `more` predictions, of which `came` came true.
  MOERT_HOST_DEVICE void Add(double came, double more) {
    if (seen + more > kHitMemory && seen > 0) {
      const double left = kHitMemory - more;
      const double keep = left > 0 ? left / seen : 0;
      used *= keep;
      seen *= keep;
    }
    used += came;
    seen += more;
  }
  /// The probability that a prediction comes true. `prior` prevails while there are few samples.
  MOERT_HOST_DEVICE double Probability(double prior) const {
    return (used + kPrior * prior) / (seen + kPrior);
  }

  static constexpr double kPrior = 8;  // weight of the prior, in samples
};

/// counts.Probability(all.Probability(guess)) of one bin, as a linear function of the guess.
struct HitLine {
  float base = 0, slope = 0;

  MOERT_HOST_DEVICE static HitLine Of(const HitCounts& counts, const HitCounts& all) {
    constexpr double kPrior = HitCounts::kPrior;
    const double of_all = kPrior / (all.seen + kPrior), of_bin = 1 / (counts.seen + kPrior);
    return {static_cast<float>((counts.used + of_all * all.used) * of_bin),
            static_cast<float>(kPrior * of_all * of_bin)};
  }
  MOERT_HOST_DEVICE float Probability(float guess) const { return base + slope * guess; }
};

}  // namespace moert

#endif  // MOERT_LIB_RULES_HIT_CURVE_H_
