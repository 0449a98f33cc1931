// The tokens of a stage of family P as fragments of mma.sync.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_MMA_TOKENS_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_MMA_TOKENS_CUH_

#include <cstdint>

namespace moert::cuda {

/// Four 8 x 8 matrices of 16 bits: lane l has the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ uint4 LoadMatrices(uint32_t row) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(row)
               : "memory");
  return v;
}

/// A lane's view of a stage's tokens, of a warp's columns.
struct MmaTokens {
  uint32_t row;
  int lane;

  /// Lanes 0 to 15 have the addresses of eight columns, in both halves of their 32 bytes; lanes 16
  /// to 31 have those of the next eight.
  __device__ __forceinline__ MmaTokens(uint32_t tokens, int first, int l)
      : row(tokens + (first + (l >> 4) * 8 + (l & 7)) * 128), lane(l) {}

  /// The i-th 32 bytes of columns c to c + 16: the first eight columns in x and y, the others in z
  /// and w.
  __device__ __forceinline__ uint4 Load(int c, int i) const {
    return LoadMatrices(row + c * 128 + (((2 * i + ((lane >> 3) & 1)) ^ (lane & 7)) * 16));
  }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_MMA_TOKENS_CUH_
