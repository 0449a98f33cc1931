// Sums of activation rows for family P's asymmetric packings (prompt_gemm.h): of every 64 channels,
// of every 128, of all. A warp sums a row, 256 channels at a time; eight lanes sum 64 of them.
#include <cuda_runtime.h>

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/prompt/prompt_gemm.h"

namespace moert::cuda {
namespace {

constexpr int kWarps = 8;

__device__ __forceinline__ float SumOfEight(uint4 v) {
  const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum += __uint_as_float(pairs[i] << 16) + __uint_as_float(pairs[i] & 0xffff0000u);
  }
  return sum;
}

/// row: the first 64 channels; the next 64 begin `next` bytes further. Successive sums are `step`
/// floats apart.
__device__ __forceinline__ void SumRow(const uint8_t* row, int64_t next, int k64s, float* sums,
                                       int step) {
  constexpr uint32_t kAll = 0xffffffffu;
  const int lane = threadIdx.x % 32;
  float all = 0;
  for (int first = 0; first < k64s; first += 4) {
    const int k = first + lane / 8;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (k < k64s) v = *reinterpret_cast<const uint4*>(row + k * next + lane % 8 * 16);
    float sum = SumOfEight(v);
#pragma unroll
    for (int d = 1; d < 8; d *= 2) sum += __shfl_xor_sync(kAll, sum, d);
    const float two = sum + __shfl_xor_sync(kAll, sum, 8);
    all += two + __shfl_xor_sync(kAll, two, 16);
    if (lane % 8 == 0 && k < k64s) {
      sums[k * step] = sum;
      if (k % 2 == 0) sums[(k64s + k / 2) * step] = two;
    }
  }
  if (lane == 0) sums[(k64s + (k64s + 1) / 2) * step] = all;
}

__global__ void __launch_bounds__(kWarps * 32)
    SumPromptXKernel(uint8_t* x, int64_t stride, int64_t sums, int rows, int k64s) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t row = blockIdx.x * kWarps + threadIdx.x / 32;
  if (row >= rows) return;
  uint8_t* const at = x + row * stride;
  SumRow(at, 128, k64s, reinterpret_cast<float*>(at + sums), 1);
}

__global__ void __launch_bounds__(kWarps * 32)
    SumPromptHKernel(const __grid_constant__ PromptGemmArgs args) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int units = *args.table.unit_count;
  for (int u = blockIdx.x; u < units; u += gridDim.x) {
    const PromptUnit& unit = args.table.units[u];
    const TileMatrix& down = unit.matrix[1];
    if (down.zero_distance == 0 || IsImported(down.packing)) continue;
    const int64_t columns = unit.columns;
    for (int c = blockIdx.y * kWarps + threadIdx.x / 32; c < unit.count; c += gridDim.y * kWarps) {
      SumRow(args.h + unit.h_row * args.h_stride + c * 128, columns * 128, down.k64s,
             args.h_columns + unit.h_row * args.h_columns_stride + c, unit.columns);
    }
  }
}

}  // namespace

int LaunchSumPromptX(uint8_t* x, int64_t stride, int64_t sums, int rows, int channels,
                     CUstream_st* stream) {
  return LaunchEarly(SumPromptXKernel, (rows + kWarps - 1) / kWarps, kWarps * 32, 0, stream, x,
                     stride, sums, rows, (channels + 63) / 64);
}

int LaunchSumPromptH(const PromptGemmArgs& args, CUstream_st* stream) {
  constexpr int kRowsAtOnce = 2;  // times kWarps, of a unit
  return LaunchEarly(SumPromptHKernel, dim3(args.ctas, kRowsAtOnce), kWarps * 32, 0, stream, args);
}

}  // namespace moert::cuda
