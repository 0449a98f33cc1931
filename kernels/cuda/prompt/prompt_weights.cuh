// Family P's A fragments of a stage (64 k), made from packed records in shared memory, and their
// scales.
//
// A warp's 16 rows of a fragment are those of a row block. With kHalves they come from two row
// blocks: rows g are 8 channels of gate, rows g + 8 the same channels of up; `half` says which 8 of
// the 16.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_WEIGHTS_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_WEIGHTS_CUH_

#include <cstdint>

#include "kernels/cuda/primitives/dequant.cuh"
#include "kernels/cuda/primitives/pipeline.cuh"

namespace moert::cuda {

/// Whether groups have scale * zero besides their scales.
MOERT_HOST_DEVICE constexpr bool HasZeros(Packing p) {
  return p == Packing::kW4Zeros || p == Packing::kW3 || p == Packing::kW2;
}

/// Loads the words of the i-th 16 k of weights of one byte: `low` for rows g, `high` for rows g +
/// 8. With kHalves, each is one word of the pair in gate's or up's row block.
template <bool kHalves>
__device__ __forceinline__ void LoadByteWords(uint32_t first, uint32_t second, int half, int i,
                                              uint32_t* low, uint32_t* high) {
  if constexpr (kHalves) {
    *low = LoadShared4(first + i * 256 + 4 * half);
    *high = LoadShared4(second + i * 256 + 4 * half);
  } else {
    const uint2 v = LoadShared8(first + i * 256);
    *low = v.x;
    *high = v.y;
  }
}

/// The fragments of four times 16 k, loaded in kParts parts. `first`, `second`: the lane's
/// addresses in shared memory, in the row blocks of rows g and of rows g + 8. unit, offset: see
/// RowScales.
template <Packing kPacking, bool kHalves, int kParts>
struct StageFragments {
  uint32_t a[4][4];

  template <typename Scales>
  __device__ __forceinline__ void Load(int part, uint32_t first, uint32_t second, int half,
                                       const Scales& scales) {
    const uint32_t(&unit)[2] = scales.unit, (&offset)[2] = scales.offset;
    if constexpr (kPacking == Packing::kBf16) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i * kParts / 4 != part) continue;
        const uint4 v = LoadShared16(first + i * 512);
        if constexpr (kHalves) {
          const uint4 w = LoadShared16(second + i * 512);
          a[i][0] = half ? v.y : v.x;
          a[i][1] = half ? w.y : w.x;
          a[i][2] = half ? v.w : v.z;
          a[i][3] = half ? w.w : w.z;
        } else {
          a[i][0] = v.x;
          a[i][1] = v.y;
          a[i][2] = v.z;
          a[i][3] = v.w;
        }
      }
    } else if constexpr (kPacking == Packing::kW3 || kPacking == Packing::kW2) {
      LoadFewBits(part, first, second, half, unit, offset);
    } else if constexpr (kPacking == Packing::kW4 || kPacking == Packing::kW4Zeros) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i * kParts / 4 != part) continue;
        uint32_t low = LoadShared4(first + i * 128);
        uint32_t high;
        if constexpr (kHalves) {
          low >>= 4 * half;
          high = LoadShared4(second + i * 128) >> 4 * half;
        } else {
          high = low >> 4;
        }
        constexpr uint32_t kMask = 0x000f000fu;
        a[i][0] = FmaBf16(MaskOr(low, kMask, kMagic), unit[0], offset[0]);
        a[i][1] = FmaBf16(MaskOr(high, kMask, kMagic), unit[1], offset[1]);
        a[i][2] = FmaBf16(MaskOr(low >> 8, kMask, kMagic), unit[0], offset[0]);
        a[i][3] = FmaBf16(MaskOr(high >> 8, kMask, kMagic), unit[1], offset[1]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i * kParts / 4 != part) continue;
        uint32_t low, high;
        LoadByteWords<kHalves>(first, second, half, i, &low, &high);
        a[i][0] = Widen(low, unit[0], offset[0]);
        a[i][1] = Widen(high, unit[1], offset[1]);
        a[i][2] = Widen(low >> 8, unit[0], offset[0]);
        a[i][3] = Widen(high >> 8, unit[1], offset[1]);
      }
    }
  }

 private:
  /// Weights of two bits, or of two bits and a plane of third bits: see FragmentW2, FragmentW3.
  __device__ __forceinline__ void LoadFewBits(int part, uint32_t first, uint32_t second, int half,
                                              const uint32_t (&unit)[2],
                                              const uint32_t (&offset)[2]) {
    uint32_t plane[2] = {};
    if constexpr (kPacking == Packing::kW3) {
      constexpr uint32_t kPlane = 256;
      plane[0] = LoadShared4(first + kPlane);
      plane[1] = kHalves ? LoadShared4(second + kPlane) >> half : plane[0] >> 1;
      if constexpr (kHalves) plane[0] >>= half;
    }
#pragma unroll
    for (int k32 = 0; k32 < 2; ++k32) {
      if (k32 * kParts / 2 != part) continue;
      uint32_t w[2];
      w[0] = LoadShared4(first + k32 * 128);
      w[1] = kHalves ? LoadShared4(second + k32 * 128) >> 2 * half : w[0] >> 2;
      if constexpr (kHalves) w[0] >>= 2 * half;
#pragma unroll
      for (int k16 = 0; k16 < 2; ++k16) {
        const int i = 2 * k32 + k16;
#pragma unroll
        for (int q = 0; q < 4; ++q) {  // bytes 0 and 2 of rows g, of rows g + 8, then 1 and 3
          const int row = q % 2, byte = 8 * (q / 2);
          uint32_t u = MaskOr(w[row] >> (4 * k16 + byte), 0x00030003u, kMagic);
          if constexpr (kPacking == Packing::kW3) {
            const int down = 2 * i + byte - 2;  // its third bit to bit 2
            u = MaskOr(down < 0 ? plane[row] << 2 : plane[row] >> down, 0x00040004u, u);
          }
          a[i][q] = FmaBf16(u, unit[row], offset[row]);
        }
      }
    }
  }
  /// The low seven bits become 128 + their value, the eighth bit 128 or 256 (FragmentW8). `offset`
  /// subtracts the constants of both.
  __device__ __forceinline__ static uint32_t Widen(uint32_t w, uint32_t unit, uint32_t offset) {
    const uint32_t top = FmaBf16(MaskOr(w, 0x00800080u, kMagic), unit, offset);
    return FmaBf16(MaskOr(w, 0x007f007fu, kMagic), unit, top);
  }
};

/// Bytes of a piece's scales: [group][row blocks][16 rows], then the zeros in the same layout.
/// Zeros begin behind 32 bytes a row block, those of imported packings behind 64.
MOERT_HOST_DEVICE constexpr int PromptScaleBytes(Packing p, int row_blocks) {
  switch (p) {
    case Packing::kBf16:
      return 0;
    case Packing::kW4Group:
      return 96 * row_blocks;
    case Packing::kF8Block:
    case Packing::kF8BlockF8:
    case Packing::kNvFp4:
      return 64 * row_blocks;
    default:
      return (HasZeros(p) ? 64 : 32) * row_blocks;
  }
}

/// a / b, approximately. |b| is in [1, 2).
__device__ __forceinline__ float Quotient(float a, float b) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
  return a * r;
}

/// Scales of a lane's two rows: scale = f * unit, unit a power of two, |f| in [1, 2). kRowBlocks:
/// row blocks of a stage.
template <Packing kPacking, int kRowBlocks>
struct RowScales {
  static constexpr bool kZeros = HasZeros(kPacking);
  int row[2];             // of a stage
  float shift[2];         // -(scale * zero) of the current group, in units of f
  float f[2] = {1, 1};    // of the current group
  uint32_t unit[2] = {};  // as bf16, in both halves
  uint32_t offset[2] = {};

  __device__ __forceinline__ void Open(int first, int second) {
    row[0] = first;
    row[1] = second;
  }
  /// Makes the group at `at` in shared memory the current one. ratio: the factor of the sums so
  /// far.
  __device__ __forceinline__ void Turn(uint32_t at, float (&ratio)[2]) {
    // -(128 + zero point), without the zero where `shift` has it. w8: -(128 + 128 + 128), see
    // Widen.
    constexpr uint32_t kOffset = kZeros                     ? 0xc300c300u
                                 : kPacking == Packing::kW4 ? 0xc308c308u
                                                            : 0xc3c0c3c0u;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t bits = LoadSharedHalf(at + row[r] * 2);
      const uint32_t exponent = bits & 0x7f80u;
      const uint32_t power = exponent | exponent << 16;  // 0 for a scale of zero
      const float fraction =
          exponent == 0 ? f[r] : __uint_as_float((bits & 0x807fu) << 16 | 0x3f800000u);
      ratio[r] = Quotient(f[r], fraction);
      f[r] = fraction;
      if constexpr (kZeros) {
        const uint32_t zero = LoadSharedHalf(at + 32 * kRowBlocks + row[r] * 2);
        shift[r] = Quotient(-__uint_as_float(zero << 16), fraction);
      }
      unit[r] = power;
      offset[r] = FmaBf16(kOffset, power, 0x80008000u);
    }
  }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_WEIGHTS_CUH_
