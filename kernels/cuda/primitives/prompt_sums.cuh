// What family P does to sums between the products of two groups of scales: a lane has rows g and
// g + 8, columns 2t and 2t + 1 of every 8.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_SUMS_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_SUMS_CUH_

#include <cstdint>

#include "kernels/cuda/primitives/pipeline.cuh"

namespace moert::cuda {

/// By a factor of each of the lane's rows.
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

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_SUMS_CUH_
