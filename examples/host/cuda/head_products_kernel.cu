#include "host/cuda/head_products_kernel.h"
#include "host/cuda/mma.cuh"
#include "host/cuda/reduce.cuh"
#include "util/launch.cuh"

namespace moert::host {
namespace {

using gpu::GridDependencySync;
using gpu::LaunchEarly;
using gpu::TriggerDependentLaunch;

constexpr int kThreads = 128;
constexpr int kChannels = kThreads / 32 * 16;  // channels per block

/// One warp per 16 channels of a head, for 8 kTiles rows.
template <int kTiles>
__global__ void __launch_bounds__(kThreads)
    HeadProductsKernel(const __grid_constant__ HeadProducts p) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int lane = threadIdx.x % 32, group = lane / 4, head = blockIdx.y;
  const int first = blockIdx.x * kChannels + threadIdx.x / 32 * 16;
  const int first_row = blockIdx.z * kTiles * 8;
  if (first >= p.out) return;
  const uint4 none = make_uint4(0, 0, 0, 0);
  const int channels[2] = {first + group, first + group + 8};
  const uint16_t* const w = p.w + (static_cast<int64_t>(head) * p.out + channels[0]) * p.in;
  float sums[kTiles][4] = {};
#pragma unroll 4
  for (int k = lane % 4 * 8; k - lane % 4 * 8 < p.in; k += 32) {
    const bool inside = k < p.in;
    uint4 low = none, high = none;
    if (inside && channels[0] < p.out) low = __ldg(reinterpret_cast<const uint4*>(w + k));
    if (inside && channels[1] < p.out) {
      high = __ldg(reinterpret_cast<const uint4*>(w + 8 * static_cast<int64_t>(p.in) + k));
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int row = first_row + t * 8 + group;
      uint4 x = none;
      if (inside && row < p.rows) {
        x = *reinterpret_cast<const uint4*>(
            p.x + (static_cast<int64_t>(row) * p.heads + head) * p.in + k);
      }
      MultiplyEight(sums[t], low, high, x);
    }
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first_row + t * 8 + lane % 4 * 2 + i % 2, channel = channels[i / 2];
      if (row >= p.rows || channel >= p.out) continue;
      p.y[(static_cast<int64_t>(row) * p.heads + head) * p.y_stride + channel] = ToBf16(sums[t][i]);
    }
  }
}

}  // namespace

int LaunchHeadProducts(const HeadProducts& p, CUstream_st* stream) {
  if (p.in % 8 != 0) return static_cast<int>(cudaErrorInvalidValue);
  const int rows = p.rows <= 8 ? 8 : 64;
  const dim3 grid((p.out + kChannels - 1) / kChannels, p.heads, (p.rows + rows - 1) / rows);
  return LaunchEarly(rows == 8 ? HeadProductsKernel<1> : HeadProductsKernel<8>, grid, kThreads, 0,
                     stream, p);
}

}  // namespace moert::host
