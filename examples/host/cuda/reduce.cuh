// Sums and maxima over a warp and a block.
#ifndef MOERT_EXAMPLES_HOST_CUDA_REDUCE_CUH_
#define MOERT_EXAMPLES_HOST_CUDA_REDUCE_CUH_

#include <cuda_bf16.h>

#include <cstdint>

namespace moert::host {

__device__ __forceinline__ float WarpSum(float v) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) v += __shfl_xor_sync(0xffffffffu, v, lanes);
  return v;
}

__device__ __forceinline__ float WarpMax(float v) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, lanes));
  }
  return v;
}

/// Sum over a block of whole warps, the same bits in every thread. `parts` [32] is shared memory
/// that no thread uses otherwise; may be called again with the same one.
__device__ __forceinline__ float BlockSum(float v, float* parts) {
  const int warps = static_cast<int>(blockDim.x) / 32;
  v = WarpSum(v);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < warps; ++w) sum += parts[w];
  return sum;
}

__device__ __forceinline__ uint16_t ToBf16(float v) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(v));
}

__device__ __forceinline__ float FromBf16(uint16_t v) {
  return __uint_as_float(static_cast<uint32_t>(v) << 16);
}

/// Two bf16 in the order of memory.
__device__ __forceinline__ float2 FromBf16Pair(uint32_t v) {
  return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}

__device__ __forceinline__ uint32_t ToBf16Pair(float low, float high) {
  return static_cast<uint32_t>(ToBf16(low)) | static_cast<uint32_t>(ToBf16(high)) << 16;
}

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_REDUCE_CUH_
