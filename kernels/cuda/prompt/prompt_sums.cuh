// Family P's operations on sums between products: a lane has rows g and g + 8 of every block,
// columns 2t and 2t + 1 of every 8.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_SUMS_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_SUMS_CUH_

#include <cstdint>

#include "kernels/cuda/primitives/pipeline.cuh"
#include "kernels/cuda/primitives/wgmma.cuh"

namespace moert::cuda {

/// Multiplies the sums by a factor for each of the lane's two rows.
template <int kColumns>
__device__ __forceinline__ void ScaleSums(const float (&factor)[2], float (&d)[kColumns / 2]) {
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    d[4 * j] *= factor[0];
    d[4 * j + 1] *= factor[0];
    d[4 * j + 2] *= factor[1];
    d[4 * j + 3] *= factor[1];
  }
}

/// d = ratio * d + shift * (the sum of a column's activations in the group that begins).
template <int kColumns>
__device__ __forceinline__ void ShiftSums(int lane, const float (&ratio)[2],
                                          const float (&shift)[2], uint32_t sums,
                                          float (&d)[kColumns / 2]) {
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    const uint2 two = LoadShared8(sums + 32 * j + 8 * (lane & 3));
    const float of[2] = {__uint_as_float(two.x), __uint_as_float(two.y)};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float& to = d[4 * j + c];
      to = fmaf(to, ratio[c / 2], shift[c / 2] * of[c & 1]);
    }
  }
}

/// d [kColumns / 2] += the products of a stage times the scales of its rows and of its columns,
/// which are in shared memory.
template <int kColumns, typename Sum>
__device__ __forceinline__ void AddScaled(int lane, const float (&of_rows)[2], uint32_t of_columns,
                                          const Sum* sums, float* d) {
  const uint32_t columns = of_columns + 8 * (lane & 3);
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    const uint2 two = LoadShared8(columns + 32 * j);
    const float of_column[2] = {__uint_as_float(two.x), __uint_as_float(two.y)};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float& to = d[4 * j + c];
      to = fmaf(static_cast<float>(sums[4 * j + c]), of_rows[c / 2] * of_column[c & 1], to);
    }
  }
}

/// d = sums, which may be d, times the scales of rows and columns.
template <int kColumns, int kBlocks, typename Scales, typename Sum>
__device__ __forceinline__ void ApplyScales(int lane, const float* of_columns,
                                            const Scales (&of_rows)[kBlocks],
                                            const Sum (&sums)[kBlocks][kColumns / 2],
                                            float (&d)[kBlocks][kColumns / 2]) {
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float column = of_columns[8 * j + 2 * (lane & 3) + (c & 1)];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        d[b][4 * j + c] = static_cast<float>(sums[b][4 * j + c]) * (of_rows[b].f[c / 2] * column);
      }
    }
  }
}

/// PinRegisters of all blocks.
template <int kBlocks, int kSums, typename Sum>
__device__ __forceinline__ void PinBlocks(Sum (&d)[kBlocks][kSums]) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) PinRegisters(d[b]);
}
template <int kBlocks, int kSums>
__device__ __forceinline__ void CopySums(const float (&from)[kBlocks][kSums],
                                         float (&to)[kBlocks][kSums]) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) to[b][i] = from[b][i];
  }
}
template <int kBlocks, int kSums, typename Sum>
__device__ __forceinline__ void ClearSums(Sum (&d)[kBlocks][kSums]) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (Sum& v : d[b]) v = 0;
  }
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_SUMS_CUH_
