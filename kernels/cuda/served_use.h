// How much the next calls of a layer will want each of its experts: the means behind UseEstimate
// (strategies/use_estimate.h), on the host and on a device.
#ifndef MOERT_KERNELS_CUDA_SERVED_USE_H_
#define MOERT_KERNELS_CUDA_SERVED_USE_H_

#include <cstdint>

#include "kernels/cuda/device_types.h"

namespace moert::cuda {

/// Means over the calls of a layer, of one expert.
struct ServedUse {
  static constexpr int kLatest = 2, kRecent = 32, kLasting = 512;  // calls

  double score = 0;    // of k times the score, over the latest calls
  double recent = 0;   // of the share of tokens that chose the expert
  double lasting = 0;  // the same over long
  int64_t chosen = 0;  // the last call that chose it; 0: none

  /// About the share of calls with one token that use the expert. The weights were fitted to
  /// recorded calls of two models over calibration texts.
  MOERT_HOST_DEVICE double Worth() const { return 0.3 * score + 0.4 * recent + 0.3 * lasting; }

  /// The layer's call of number `calls`, from 1: the share of its tokens that chose the expert, and
  /// the mean of k times its score (NaN does not count).
  MOERT_HOST_DEVICE void Add(int64_t calls, double used, double scored) {
    if (!(scored == scored)) scored = used;
    score += Weight(calls, kLatest) * (scored - score);
    recent += Weight(calls, kRecent) * (used - recent);
    lasting += Weight(calls, kLasting) * (used - lasting);
    if (used > 0) chosen = calls;
  }

 private:
  MOERT_HOST_DEVICE static double Weight(int64_t calls, int most) {
    return 1.0 / static_cast<double>(calls < most ? calls : most);
  }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_SERVED_USE_H_
