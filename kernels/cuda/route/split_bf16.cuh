// Numbers as sums of bf16, for tensor cores: a part is what is left, rounded. Three are an fp32 of
// 24 bits, two an f16, exactly (but for parts below 2^-133).
#ifndef MOERT_KERNELS_CUDA_ROUTE_SPLIT_BF16_CUH_
#define MOERT_KERNELS_CUDA_ROUTE_SPLIT_BF16_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace moert::cuda {

/// Splits two numbers, the first in the lower half of every part.
template <int kParts>
__device__ __forceinline__ void SplitTwo(float low, float high, uint32_t (&parts)[kParts]) {
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(parts[p]) : "f"(high), "f"(low));
    low -= __uint_as_float(parts[p] << 16);
    high -= __uint_as_float(parts[p] & 0xffff0000u);
  }
}

/// Splits four elements of type T as they lie in memory: the parts of the first two, of the others.
template <typename T, int kParts>
__device__ __forceinline__ void SplitFour(const uint32_t (&words)[sizeof(T)],
                                          uint32_t (&parts)[kParts][2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      static_assert(kParts == 1);
      parts[0][i] = words[i];
    } else {
      float2 two;
      if constexpr (std::is_same_v<T, __half>) {
        two = __half22float2(
            __halves2half2(__ushort_as_half(words[i] & 0xffffu), __ushort_as_half(words[i] >> 16)));
      } else {
        two = make_float2(__uint_as_float(words[2 * i]), __uint_as_float(words[2 * i + 1]));
      }
      uint32_t of[kParts];
      SplitTwo(two.x, two.y, of);
#pragma unroll
      for (int p = 0; p < kParts; ++p) parts[p][i] = of[p];
    }
  }
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_ROUTE_SPLIT_BF16_CUH_
