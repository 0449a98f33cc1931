// Rounding to nearest: a thread computes one candidate range, then a warp per group chooses among
// them.
#include "kernels/cuda/offline/fit_groups.h"
#include "kernels/cuda/offline/group_tile.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace moert::cuda {
namespace {

struct Tried {
  Fit fit;
  RtnError error;
};

int SharedBytes(const FitMatrix& m, const RangeForm& form, int groups) {
  return groups * static_cast<int>(TilePitch(m) * sizeof(float) + form.candidates * sizeof(Tried));
}

/// The best of a group's candidates, by all lanes of a warp.
__device__ Fit ChooseRtn(const RangeForm& form, const GroupRange& range, const Tried* tried) {
  const int lane = threadIdx.x % 32;
  bool can = (range.low != 0 || range.high != 0) && CanFitRtn(tried[0].fit.scale);
  int best = 0;
  for (int c = lane; c < form.candidates; c += 32) {
    can = can && CanFitRtn(form, tried[c].fit);
    if (!(tried[best].error.error <= tried[c].error.error)) best = c;
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    const int other = __shfl_xor_sync(kWholeWarp, best, d);
    const float mine = tried[best].error.error, its = tried[other].error.error;
    if (its < mine || (its == mine && other < best)) best = other;
  }
  const Tried winner = tried[best];
  can = can && winner.error.error < HUGE_VALF;  // false for NaN
  for (int c = lane; c < form.candidates; c += 32) {
    can = can && !MayBeBetter(tried[c].error, tried[c].fit, winner.error, winner.fit);
  }
  return __all_sync(kWholeWarp, can) ? winner.fit : Undecided();
}

__global__ void __launch_bounds__(kFitThreads)
    FitRtnKernel(FitMatrix m, const __grid_constant__ RangeForm form, int groups, Fit* fits) {
  TriggerDependentLaunch();
  GridDependencySync();
  extern __shared__ __align__(16) char shared[];
  __shared__ GroupRange ranges[kMostTileGroups];
  Tried* const tried = reinterpret_cast<Tried*>(shared);
  float* const values = reinterpret_cast<float*>(tried + groups * form.candidates);
  const int64_t first = int64_t{blockIdx.x} * groups;
  LoadGroups(m, first, groups, /*from_zero=*/true, values, ranges);
  for (int at = threadIdx.x; at < groups * form.candidates; at += kFitThreads) {
    const int g = at / form.candidates;
    const GroupRange& range = ranges[g];
    const Fit widest = SpanningFit(form, range.low, range.high, form.shares[0]);
    const Fit fit = SpanningFit(form, range.low, range.high, form.shares[at - g * form.candidates]);
    tried[at] = {fit,
                 ErrorOfRange(form, fit, widest.scale, values + g * TilePitch(m), range.count)};
  }
  __syncthreads();
  for (int g = threadIdx.x / 32; g < groups; g += kFitWarps) {
    if (ranges[g].count == 0) continue;
    const Fit fit = ChooseRtn(form, ranges[g], tried + g * form.candidates);
    if (threadIdx.x % 32 == 0) fits[first + g] = fit;
  }
}

}  // namespace

int LaunchFitRtn(const FitMatrix& m, const RangeForm& form, Fit* fits, CUstream_st* stream) {
  if (m.group > kMostGroupValues || form.candidates > RangeForm::kMost)
    return cudaErrorInvalidValue;
  int groups = TileGroups(m);
  constexpr int kMostShared = 40 << 10;
  while (groups > 1 && SharedBytes(m, form, groups) > kMostShared) --groups;
  const int64_t ctas = (m.rows * m.groups() + groups - 1) / groups;
  return LaunchEarly(FitRtnKernel, dim3(static_cast<unsigned>(ctas)), kFitThreads,
                     SharedBytes(m, form, groups), stream, m, form, groups, fits);
}

}  // namespace moert::cuda
