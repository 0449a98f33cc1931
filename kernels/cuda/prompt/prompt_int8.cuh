// Family P's products in 8 bits (w8a8, w4a8, w8a8_fp8, fp8_b128 by fp8). A stage is 128 k. The
// other operand is rows of activations as rows.h packs them: a word of four activations has its
// channels in the same order as a lane's word of weights.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_INT8_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_INT8_CUH_

#include <cstdint>

#include "kernels/cuda/primitives/dequant.cuh"
#include "kernels/cuda/primitives/pipeline.cuh"

namespace moert::cuda {

MOERT_HOST_DEVICE constexpr bool IsE4m3(Packing p) {
  return p == Packing::kF8 || p == Packing::kF8BlockF8;
}
MOERT_HOST_DEVICE constexpr bool Is8Bit(Packing p) {
  return p == Packing::kW8A8 || p == Packing::kW4A8 || IsE4m3(p);
}
/// Whether an activation row has one scale, which is in the PromptSlot.
MOERT_HOST_DEVICE constexpr bool HasRowScales(Packing p) {
  return p == Packing::kW8A8 || p == Packing::kF8;
}

/// As StageFragments, but of four times 32 k.
template <Packing kPacking, bool kHalves, int kParts>
struct Int8Fragments {
  uint32_t a[4][4];

  template <typename Scales>
  __device__ __forceinline__ void Load(int part, uint32_t first, uint32_t second, int half,
                                       const Scales& /*scales*/) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i * kParts / 4 != part) continue;
#pragma unroll
      for (int k16 = 0; k16 < 2; ++k16) {
        const uint32_t at = (i * 2 + k16) * (K64Bytes(kPacking) / 4);
        uint2 v;
        if constexpr (kPacking != Packing::kW4A8) {
          if constexpr (kHalves) {
            v = make_uint2(LoadShared4(first + at + 4 * half), LoadShared4(second + at + 4 * half));
          } else {
            v = LoadShared8(first + at);
          }
          constexpr uint32_t kMiddle = IsE4m3(kPacking) ? 0 : 0x80808080u;  // u - 128
          v = make_uint2(v.x ^ kMiddle, v.y ^ kMiddle);
        } else {
          v.x = LoadShared4(first + at);
          v.y = kHalves ? LoadShared4(second + at) : v.x;
          if (kHalves && half == 0) v = make_uint2(v.x << 4, v.y << 4);
          if (!kHalves) v.x <<= 4;
          v = make_uint2(HighNibbles(v.x), HighNibbles(v.y));
        }
        a[i][2 * k16] = v.x;
        a[i][2 * k16 + 1] = v.y;
      }
    }
  }

 private:
  /// 16 (u - 8), see FragmentW4A8.
  __device__ __forceinline__ static uint32_t HighNibbles(uint32_t w) {
    return MaskXor(w, 0xf0f0f0f0u, 0x80808080u);
  }
};

/// Scales of a lane's two rows: one per channel, or one per group, which is a stage.
template <Packing kPacking>
struct Int8RowScales {
  int row[2];  // of a stage
  float f[2];  // the scales read last

  __device__ __forceinline__ void Open(int first, int second) {
    row[0] = first;
    row[1] = second;
  }
  /// at: a stage's scales in shared memory.
  __device__ __forceinline__ void Read(uint32_t at) {
    constexpr float kUnit = kPacking == Packing::kW4A8 ? 1 / kW4A8Unit : 1;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (kPacking == Packing::kF8BlockF8) {
        f[r] = __uint_as_float(LoadShared4(at + row[r] * 4));
      } else {
        f[r] = __uint_as_float(LoadSharedHalf(at + row[r] * 2) << 16) * kUnit;
      }
    }
  }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_INT8_CUH_
