// Family P's products of int8 (w8a8, w4a8): a stage is 128 k, and rows of activations as they are
// packed (rows.h) are the other operand: a lane's word of weights and four of their channels lie
// alike.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_INT8_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_INT8_CUH_

#include <cstdint>

#include "kernels/cuda/primitives/dequant.cuh"
#include "kernels/cuda/primitives/pipeline.cuh"

namespace moert::cuda {

MOERT_HOST_DEVICE constexpr bool IsInt8(Packing p) {
  return p == Packing::kW8A8 || p == Packing::kW4A8;
}

/// As StageFragments; of four times 32 k.
template <Packing kPacking, bool kGateUp>
struct Int8Fragments {
  uint32_t a[4][4];

  __device__ __forceinline__ void Load(uint32_t first, uint32_t second, int half) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int k16 = 0; k16 < 2; ++k16) {
        const uint32_t at = (i * 2 + k16) * (K64Bytes(kPacking) / 4);
        uint2 v;
        if constexpr (kPacking == Packing::kW8A8) {
          if constexpr (kGateUp) {
            v = make_uint2(LoadShared4(first + at + 4 * half), LoadShared4(second + at + 4 * half));
          } else {
            v = LoadShared8(first + at);
          }
          constexpr uint32_t kMiddle = 0x80808080u;  // u - 128
          v = make_uint2(v.x ^ kMiddle, v.y ^ kMiddle);
        } else {
          v.x = LoadShared4(first + at);
          v.y = kGateUp ? LoadShared4(second + at) : v.x;
          if (kGateUp && half == 0) v = make_uint2(v.x << 4, v.y << 4);
          if (!kGateUp) v.x <<= 4;
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

/// Scales of a lane's two rows: one a channel, or one a group, which is a stage.
template <Packing kPacking>
class Int8RowScales {
 public:
  float f[2];  // of the channel, of the group that was taken last

  __device__ __forceinline__ void Open(const uint8_t* first, const uint8_t* second) {
    at_[0] = first;
    at_[1] = second;
    Fetch(0);
    if constexpr (kPacking == Packing::kW8A8) Take(0, false);
  }
  /// What was fetched is current; fetches the next group's if there is one.
  __device__ __forceinline__ void Take(int64_t stride, bool more) {
    constexpr float kUnit = kPacking == Packing::kW4A8 ? 1 / kW4A8Unit : 1;
#pragma unroll
    for (int r = 0; r < 2; ++r) f[r] = __uint_as_float(uint32_t{next_[r]} << 16) * kUnit;
    if (more) Fetch(stride);
  }

 private:
  __device__ __forceinline__ void Fetch(int64_t stride) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      at_[r] += stride;
      asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(next_[r]) : "l"(at_[r]));
    }
  }
  const uint8_t* at_[2];
  uint16_t next_[2];
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_INT8_CUH_
