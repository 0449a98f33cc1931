// How often predictions of a gate came true, by what the predicted score is of the token's k-th
// best, on the host (strategies/calibrated_gate.h) and on a device.
#ifndef MOERT_KERNELS_CUDA_HIT_CURVE_H_
#define MOERT_KERNELS_CUDA_HIT_CURVE_H_

#include <cmath>

#include "kernels/cuda/device_types.h"

namespace moert::cuda {

constexpr int kHitBins = 24;  // of log2(ratio), 1/3 wide, around 0
constexpr double kHitMemory = 1024;

/// Of score / k-th best score = ratio.
MOERT_HOST_DEVICE inline int HitBin(double ratio) {
  if (!(ratio > 1e-9)) return 0;
  if (ratio > 1e9) return kHitBins - 1;
  int exponent = 0;
  const double mantissa = 2 * frexp(ratio, &exponent);                            // in [1, 2)
  constexpr double kThird = 1.2599210498948732, kTwoThirds = 1.5874010519681994;  // 2^(1/3), ^2
  const int thirds =
      3 * (exponent - 1) + (mantissa >= kThird ? 1 : 0) + (mantissa >= kTwoThirds ? 1 : 0);
  const int bin = thirds + kHitBins / 2;
  return bin < 0 ? 0 : bin < kHitBins ? bin : kHitBins - 1;
}

/// That such a prediction comes true, before anything was seen.
MOERT_HOST_DEVICE inline double GuessedHits(double ratio) {
  return 0.9 * ratio * ratio / (1 + ratio * ratio);
}

/// Predictions of one bin, the older ones forgotten.
struct HitCounts {
  double used = 0, seen = 0;

  /// `more` predictions, of which `came` came true.
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
  /// `prior` answers as far as little was seen.
  MOERT_HOST_DEVICE double Probability(double prior) const {
    constexpr double kPrior = 8;  // samples that it counts as much as
    return (used + kPrior * prior) / (seen + kPrior);
  }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_HIT_CURVE_H_
