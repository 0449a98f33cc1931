// Family P's products of int8 (w8a8): a stage is 128 k, and rows of activations as they are packed
// (rows.h) are the other operand: a lane's word of weights and four of their channels lie alike.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_INT8_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_INT8_CUH_

#include <cstdint>

#include "kernels/cuda/primitives/pipeline.cuh"

namespace moert::cuda {

/// As StageFragments; of four times 32 k.
template <bool kGateUp>
struct Int8Fragments {
  uint32_t a[4][4];

  __device__ __forceinline__ void Load(uint32_t first, uint32_t second, int half) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int k16 = 0; k16 < 2; ++k16) {
        const uint32_t at = i * 512 + k16 * 256;
        uint2 v;
        if constexpr (kGateUp) {
          v = make_uint2(LoadShared4(first + at + 4 * half), LoadShared4(second + at + 4 * half));
        } else {
          v = LoadShared8(first + at);
        }
        constexpr uint32_t kMiddle = 0x80808080u;  // u - 128
        a[i][2 * k16] = v.x ^ kMiddle;
        a[i][2 * k16 + 1] = v.y ^ kMiddle;
      }
    }
  }
};

/// Scales of a lane's two rows, one a channel.
struct ChannelRowScales {
  float f[2];

  __device__ __forceinline__ void Open(const uint8_t* first, const uint8_t* second) {
    f[0] = Widen(*reinterpret_cast<const uint16_t*>(first));
    f[1] = Widen(*reinterpret_cast<const uint16_t*>(second));
  }

 private:
  __device__ __forceinline__ static float Widen(uint32_t bf16) {
    return __uint_as_float(bf16 << 16);
  }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_INT8_CUH_
