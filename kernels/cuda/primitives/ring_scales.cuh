// Scales of a unit of few bits, from shared memory into registers.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_RING_SCALES_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_RING_SCALES_CUH_

#include <cstdint>

#include "kernels/cuda/primitives/pipeline.cuh"

namespace moert::cuda {

/// Scales and zeros of a group for rows g and g + 8 (low and high half) of both row blocks.
struct RingScales {
  uint32_t scale[2];
  uint32_t zero[2];

  /// `at`: of the group, in shared memory. A transposed read of 8 x 8 gives a lane column g of two
  /// rows; they are the two halves of a row block's scales.
  __device__ __forceinline__ RingScales(const uint8_t* at, int lane, bool zeros) {
    const uint32_t row = SharedAddress(at) + (lane >> 3) * 32 + (lane & 1) * 16;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(scale[0]), "=r"(scale[1]), "=r"(zero[0]), "=r"(zero[1])
                 : "r"(row)
                 : "memory");
    if (!zeros) zero[0] = zero[1] = 0;
  }
  __device__ __forceinline__ static float Widen(uint32_t pair, int upper) {
    return __uint_as_float(upper == 0 ? pair << 16 : pair & 0xffff0000u);
  }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_RING_SCALES_CUH_
