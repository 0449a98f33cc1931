// Groups of weights in shared memory, for CTAs that search their scales.
#ifndef MOERT_KERNELS_CUDA_OFFLINE_GROUP_TILE_CUH_
#define MOERT_KERNELS_CUDA_OFFLINE_GROUP_TILE_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/offline/fit_groups.h"

namespace moert::cuda {

constexpr int kFitWarps = 4;
constexpr int kFitThreads = 32 * kFitWarps;
constexpr int kMostTileGroups = 16;
constexpr uint32_t kWholeWarp = 0xffffffffu;

/// The number of groups of a CTA: kMostTileGroups, or as many as kMostGroupValues values allow.
inline int TileGroups(const FitMatrix& m) {
  const int fit = kMostGroupValues / m.group;
  return fit < 1 ? 1 : fit > kMostTileGroups ? kMostTileGroups : fit;
}
/// An odd distance, so that lanes that read the same index of different groups have no bank
/// conflicts.
MOERT_FIT_FUNCTION int TilePitch(const FitMatrix& m) { return m.group | 1; }

struct GroupRange {
  int count;  // values; 0: there is no such group
  float low, high;
};

/// Loads the groups first..first + groups and their extremes (with `from_zero`, the range includes
/// +0). Ends with a barrier.
__device__ __forceinline__ void LoadGroups(const FitMatrix& m, int64_t first, int groups,
                                           bool from_zero, float* values, GroupRange* ranges) {
  const int lane = threadIdx.x % 32, per_row = m.groups();
  const int64_t total = m.rows * per_row;
  for (int g = threadIdx.x / 32; g < groups; g += kFitWarps) {
    const int64_t at = first + g;
    if (at >= total) {
      if (lane == 0) ranges[g] = {0, 0, 0};
      continue;
    }
    const int64_t row = at / per_row, column = at % per_row * m.group;
    const int count = static_cast<int>(m.k - column < m.group ? m.k - column : m.group);
    const float* const from = m.values + row * m.stride + column;
    float* const to = values + g * TilePitch(m);
    float low = from_zero ? 0 : from[0], high = low;
    for (int i = lane; i < count; i += 32) {
      const float v = from[i];
      to[i] = v;
      low = v < low ? v : low;
      high = v > high ? v : high;
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
      const float l = __shfl_xor_sync(kWholeWarp, low, d), h = __shfl_xor_sync(kWholeWarp, high, d);
      low = l < low ? l : low;
      high = h > high ? h : high;
    }
    if (lane == 0) ranges[g] = {count, low, high};
  }
  __syncthreads();
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_OFFLINE_GROUP_TILE_CUH_
