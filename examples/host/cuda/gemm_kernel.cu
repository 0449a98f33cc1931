#include "host/cuda/gemm_kernel.h"
#include "host/cuda/reduce.cuh"
#include "util/launch.cuh"

namespace moert::host {
namespace {

using gpu::GridDependencySync;
using gpu::LaunchEarly;
using gpu::TriggerDependentLaunch;

constexpr int kWarps = 4;
constexpr int kMaxRows = 8;

/// One warp per output channel and kRows rows; a lane takes 8 elements of every 256.
template <int kRows>
__global__ void __launch_bounds__(kWarps * 32) GemmKernel(const __grid_constant__ DenseGemm g) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int channel = blockIdx.x * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (channel >= g.out) return;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kRows;
  const int rows = min(kRows, static_cast<int>(g.rows - first));
  const uint16_t* w = g.w + static_cast<int64_t>(channel) * g.in;
  const uint16_t* x = g.x + first * g.in;
  float sum[kRows] = {};
  if (g.in % 8 == 0) {
#pragma unroll 4
    for (int k = lane * 8; k < g.in; k += 256) {
      const uint4 packed = __ldg(reinterpret_cast<const uint4*>(w + k));
      const float2 a[4] = {FromBf16Pair(packed.x), FromBf16Pair(packed.y), FromBf16Pair(packed.z),
                           FromBf16Pair(packed.w)};
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r >= rows) break;
        const uint4 row = *reinterpret_cast<const uint4*>(x + static_cast<int64_t>(r) * g.in + k);
        const float2 b[4] = {FromBf16Pair(row.x), FromBf16Pair(row.y), FromBf16Pair(row.z),
                             FromBf16Pair(row.w)};
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[r] += a[i].x * b[i].x + a[i].y * b[i].y;
      }
    }
  } else {
    for (int k = lane; k < g.in; k += 32) {
      const float a = FromBf16(w[k]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r >= rows) break;
        sum[r] += a * FromBf16(x[static_cast<int64_t>(r) * g.in + k]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) break;
    const float total = WarpSum(sum[r]);
    if (lane != 0) continue;
    float* y = g.y + (first + r) * g.out + channel;
    *y = g.accumulate ? *y + total : total;
  }
}

}  // namespace

int LaunchDenseGemm(const DenseGemm& g, CUstream_st* stream) {
  const int rows = g.rows <= 1 ? 1 : g.rows <= 2 ? 2 : g.rows <= 4 ? 4 : kMaxRows;
  const dim3 grid((g.out + kWarps - 1) / kWarps, (g.rows + rows - 1) / rows);
  const auto kernel = rows == 1   ? GemmKernel<1>
                      : rows == 2 ? GemmKernel<2>
                      : rows == 4 ? GemmKernel<4>
                                  : GemmKernel<kMaxRows>;
  return LaunchEarly(kernel, grid, kWarps * 32, 0, stream, g);
}

}  // namespace moert::host
