// Warp-level matrix products (mma.sync, sm_80 and later). Fragments are named as in the PTX manual;
// lane = g * 4 + t. Volatile: products and the loads between them stay in the order of the program.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_MMA_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_MMA_CUH_

#include <cstdint>

namespace moert::cuda {

/// c [16, 8] += a [16, 16] b [16, 8], bf16 operands, fp32 sums.
/// c: [4]. c[0], c[1]: row g, columns 2t, 2t+1; c[2], c[3]: row g + 8.
__device__ __forceinline__ void MmaBf16(float* c, const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// c [16, 8] += a [16, 32] b [32, 8], int8 operands, exact int32 sums.
__device__ __forceinline__ void MmaInt8(int32_t* c, const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Whether the code that is being compiled has MmaF8.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
constexpr bool kHasMmaF8 = true;
#else
constexpr bool kHasMmaF8 = false;
#endif

/// The same of e4m3 operands. fp32 sums, which lose bits below about 2^-13 of the largest term.
__device__ __forceinline__ void MmaF8(float* c, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_MMA_CUH_
