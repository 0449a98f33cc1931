// Half-quadratic quantization: a thread iterates a candidate of a group to its end, then takes
// another one; candidates differ in how many iterations they need.
#include "kernels/cuda/offline/fit_groups.h"
#include "kernels/cuda/offline/group_tile.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace moert::cuda {
namespace {

struct Tried {
  double error;
  Fit fit;
};

int SharedBytes(const FitMatrix& m, const HqqForm& form, int groups) {
  return groups * static_cast<int>(TilePitch(m) * sizeof(float) + form.candidates * sizeof(Tried));
}

/// Iterates all candidates of all groups; threads take them from the counter `next`. undecided: set
/// for groups with outliers.
template <bool kSymmetric>
__device__ void IterateAll(const FitMatrix& m, const HqqForm& form, int groups, const float* values,
                           const GroupRange* ranges, int* next, Tried* tried, int* undecided) {
  const int all = groups * form.candidates;
  HqqCandidate candidate;
  int at = -1, g = 0;
  bool left = true;
  while (true) {
    while (at < 0 && left) {  // takes the next candidate that can be tried
      const int taken = atomicAdd(next, 1);
      left = taken < all;
      if (!left) break;
      g = taken / form.candidates;
      tried[taken].fit = {0, 0};
      if (CanFitHqq(ranges[g].low, ranges[g].high) &&
          BeginHqq(form, ranges[g].low, ranges[g].high, taken - g * form.candidates, &candidate)) {
        at = taken;
      }
    }
    if (!__any_sync(kWholeWarp, at >= 0)) return;
    if (at >= 0 &&
        !IterateHqq<kSymmetric>(form, values + g * TilePitch(m), ranges[g].count, &candidate)) {
      tried[at].fit = StoredHqq(form, candidate);
      if (candidate.outliers) undecided[g] = 1;
      at = -1;
    }
  }
}

template <bool kSymmetric>
__global__ void __launch_bounds__(kFitThreads)
    FitHqqKernel(FitMatrix m, const __grid_constant__ HqqForm form, int groups, Fit* fits) {
  TriggerDependentLaunch();
  GridDependencySync();
  extern __shared__ __align__(16) char shared[];
  __shared__ GroupRange ranges[kMostTileGroups];
  __shared__ int undecided[kMostTileGroups];
  __shared__ int next;
  Tried* const tried = reinterpret_cast<Tried*>(shared);
  float* const values = reinterpret_cast<float*>(tried + groups * form.candidates);
  const int64_t first = int64_t{blockIdx.x} * groups;
  if (threadIdx.x == 0) next = 0;
  if (threadIdx.x < kMostTileGroups) undecided[threadIdx.x] = 0;
  LoadGroups(m, first, groups, /*from_zero=*/false, values, ranges);
  IterateAll<kSymmetric>(m, form, groups, values, ranges, &next, tried, undecided);
  __syncthreads();
  for (int at = threadIdx.x; at < groups * form.candidates; at += kFitThreads) {
    const int g = at / form.candidates;
    const Fit fit = tried[at].fit;
    tried[at].error =
        fit.scale > 0 ? HqqError(form, fit, values + g * TilePitch(m), ranges[g].count) : HUGE_VAL;
  }
  __syncthreads();
  const int g = threadIdx.x;
  if (g >= groups || ranges[g].count == 0) return;
  const Tried* const mine = tried + g * form.candidates;
  int best = 0;
  for (int c = 1; c < form.candidates; ++c) best = mine[c].error < mine[best].error ? c : best;
  const bool found = undecided[g] == 0 && mine[best].error < HUGE_VAL;
  fits[first + g] = found ? mine[best].fit : Undecided();
}

}  // namespace

int LaunchFitHqq(const FitMatrix& m, const HqqForm& form, Fit* fits, CUstream_st* stream) {
  if (m.group > kMostGroupValues || form.candidates > HqqForm::kMost ||
      form.iterations > HqqForm::kMost) {
    return cudaErrorInvalidValue;
  }
  const int groups = TileGroups(m);
  const int64_t ctas = (m.rows * m.groups() + groups - 1) / groups;
  return LaunchEarly(form.symmetric ? FitHqqKernel<true> : FitHqqKernel<false>,
                     dim3(static_cast<unsigned>(ctas)), kFitThreads, SharedBytes(m, form, groups),
                     stream, m, form, groups, fits);
}

}  // namespace moert::cuda
