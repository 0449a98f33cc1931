// Scales of a unit of few bits, from shared memory into registers.
#ifndef MOERT_KERNELS_CUDA_FEW_RING_SCALES_CUH_
#define MOERT_KERNELS_CUDA_FEW_RING_SCALES_CUH_

#include <cstdint>

#include "kernels/cuda/primitives/dequant.cuh"
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

/// acc += scale * sum. at: the scales as floats, [row block][16 rows].
template <int kTokens8>
__device__ __forceinline__ void AddScaled(const uint8_t* at, int lane,
                                          const float (&sum)[2][kTokens8][4],
                                          float (&acc)[2][kTokens8][4]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const float scale = reinterpret_cast<const float*>(at)[r * 16 + upper * 8 + (lane >> 2)];
#pragma unroll
      for (int n = 0; n < kTokens8; ++n) {
#pragma unroll
        for (int c = 2 * upper; c < 2 * upper + 2; ++c) {
          acc[r][n][c] = fmaf(scale, sum[r][n][c], acc[r][n][c]);
        }
      }
    }
  }
}

/// acc += unit * scale * x_scale * sum. x_scales: of the columns.
template <int kTokens8>
__device__ __forceinline__ void AddScaled(const RingScales& s, const float (&x_scales)[kTokens8][2],
                                          const int32_t (&sum)[2][kTokens8][4],
                                          float (&acc)[2][kTokens8][4]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float scale = RingScales::Widen(s.scale[r], c / 2) * (1 / kW4A8Unit);
#pragma unroll
      for (int n = 0; n < kTokens8; ++n) {
        acc[r][n][c] =
            fmaf(static_cast<float>(sum[r][n][c]), scale * x_scales[n][c & 1], acc[r][n][c]);
      }
    }
  }
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_FEW_RING_SCALES_CUH_
