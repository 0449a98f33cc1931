// Family P's weights and scales of imported packings, those of published files (Scheme::imported).
// Scales are copied into shared memory behind the weights of their stage.
//
// An fp4 weight times its scale has at most six significant bits and is exact in bf16. The other
// packings do as prompt_weights.cuh says: a value times the scale's power of two, and sums in units
// of the scale's remaining factor.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_IMPORTED_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_IMPORTED_CUH_

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/primitives/dequant.cuh"
#include "kernels/cuda/primitives/pipeline.cuh"
#include "kernels/cuda/prompt/imported_scales.cuh"
#include "kernels/cuda/prompt/prompt_weights.cuh"

namespace moert::cuda {

/// Offset of a stage's zeros, which are behind its scales.
MOERT_HOST_DEVICE constexpr int ImportedZerosAt(int row_blocks) { return 64 * row_blocks; }
/// The most scale groups that a stage has.
MOERT_HOST_DEVICE constexpr int PromptGroups(Packing p) {
  return p == Packing::kF8Block ? 1 : p == Packing::kNvFp4 ? 4 : 2;
}
/// Parts of a stage whose products are issued one after the other, because scales may change
/// between them.
MOERT_HOST_DEVICE constexpr int PromptParts(Packing p) { return p == Packing::kW4Group ? 2 : 1; }

/// The form of a matrix's scales, without their addresses.
struct PromptScaleForm {
  int32_t group_k16s, groups;
  int32_t zero_distance;  // 0: none
  int32_t f16;
  float matrix_scale[2];  // nvfp4: of rows g, of rows g + 8
};

/// Scales of a lane's two rows. kRowBlocks: row blocks of a stage.
template <Packing kPacking, int kRowBlocks>
struct ImportedRowScales {
  static constexpr bool kTurns = !IsFp4(kPacking);
  static constexpr int kUnits = IsFp4(kPacking) ? PromptGroups(kPacking) : 1;

  int row[2];                // of a stage
  float f[2];                // unit of the sums: of the current group, or (fp4) of all
  uint32_t unit[kUnits][2];  // factor of the values as bf16, in both halves
  uint32_t offset[2] = {};   // int4: -(128 + zero) * unit

  /// matrix: the one of both rows; -1: matrix_scale[r] is that of row r.
  __device__ __forceinline__ void Open(const PromptScaleForm& form, int first, int second,
                                       int matrix) {
    row[0] = first;
    row[1] = second;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      f[r] = IsFp4(kPacking) ? kFp4Unit<kPacking> : 1;
      if constexpr (kPacking == Packing::kNvFp4) f[r] *= form.matrix_scale[matrix < 0 ? r : matrix];
    }
  }
  /// Whether another group begins with part `part` of stage k.
  __device__ __forceinline__ static bool Begins(const PromptScaleForm& form, int k, int part) {
    if constexpr (!kTurns) return false;
    if constexpr (kPacking == Packing::kF8Block) return (k & 1) == 0 && part == 0;
    const int k16 = k * 4 + part * 2;
    return (k16 & (form.group_k16s - 1)) == 0 && k16 < form.groups * form.group_k16s;
  }
  /// fp4: reads the scales of all groups of a stage. at: the stage's scales in shared memory.
  __device__ __forceinline__ void ReadStage(uint32_t at) {
    if constexpr (!kTurns) {
      // The four lanes with weights of the same rows convert a group each and exchange the results.
      const int lane = threadIdx.x % 32;
      const uint32_t mine = at + lane % kUnits * (kRowBlocks * 16);
      const uint32_t two = LoadSharedByte(mine + row[0]) | LoadSharedByte(mine + row[1]) << 16;
      const uint32_t both = kPacking == Packing::kMxFp4 ? MxMultipliers(two) : NvMultipliers(two);
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        const uint32_t of = __shfl_sync(~0u, both, (lane & ~3) | i);
        unit[i][0] = __byte_perm(of, 0, 0x1010);
        unit[i][1] = __byte_perm(of, 0, 0x3232);
      }
    }
  }
  /// Makes the group that begins the current one. ratio: the factor of the sums so far.
  __device__ __forceinline__ void Turn(const PromptScaleForm& form, uint32_t at, int part,
                                       float (&ratio)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float fraction = f[r];
      if constexpr (kPacking == Packing::kF8Block) {
        const uint32_t bits = LoadShared4(at + row[r] * 4);
        // The unit turns e4m3 / 2^120 (FragmentF8) into e4m3 * 2^power, in the range of bf16.
        const int power = min(max(static_cast<int>(bits >> 23 & 0xff) - 127, -100), 7);
        unit[0][r] = 0;
        if ((bits & 0x7fffffffu) != 0) {
          fraction = __uint_as_float(bits) * __int_as_float((127 - power) << 23);
          unit[0][r] = static_cast<uint32_t>(power + 120 + 127) * 0x00800080u;
        }
      } else {
        const int group = form.group_k16s == 2 ? part : 0;  // in the stage
        const uint32_t half = LoadSharedHalf(at + group * (kRowBlocks * 32) + row[r] * 2);
        const uint32_t bits =
            form.f16 != 0
                ? __float_as_uint(__half2float(__ushort_as_half(static_cast<unsigned short>(half))))
                : half << 16;
        const uint32_t exponent = bits & 0x7f800000u;
        const uint32_t power = exponent | exponent >> 16;  // 0 for a scale of zero
        if (exponent != 0) fraction = __uint_as_float((bits & 0x807fffffu) | 0x3f800000u);
        const uint32_t zeros = at + ImportedZerosAt(kRowBlocks) + group * (kRowBlocks * 16);
        const uint32_t zero = form.zero_distance != 0 ? LoadSharedByte(zeros + row[r]) : 8;
        unit[0][r] = power;
        offset[r] = MulBf16(zero * 0x00010001u | 0xc300c300u, power);
      }
      ratio[r] = __fdividef(f[r], fraction);
      f[r] = fraction;
    }
  }
};

/// As StageFragments.
template <Packing kPacking, bool kHalves, int kParts>
struct ImportedFragments {
  uint32_t a[4][4];

  template <int kRowBlocks>
  __device__ __forceinline__ void Load(int part, uint32_t first, uint32_t second, int half,
                                       const ImportedRowScales<kPacking, kRowBlocks>& scales) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i * kParts / 4 != part) continue;
      uint32_t low, high;
      if constexpr (kPacking == Packing::kF8Block) {
        LoadByteWords<kHalves>(first, second, half, i, &low, &high);
        FragmentF8(low, high, a[i]);
      } else {
        low = LoadShared4(first + i * 128);
        if constexpr (kHalves) {
          low >>= 4 * half;
          high = LoadShared4(second + i * 128) >> 4 * half;
        } else {
          high = low >> 4;
        }
        a[i][0] = Nibbles(low);
        a[i][1] = Nibbles(high);
        a[i][2] = Nibbles(low >> 8);
        a[i][3] = Nibbles(high >> 8);
      }
      constexpr int kUnits = ImportedRowScales<kPacking, kRowBlocks>::kUnits;
      const auto& unit = scales.unit[i * kUnits / 4];
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        a[i][q] = kPacking == Packing::kW4Group
                      ? FmaBf16(a[i][q], unit[q % 2], scales.offset[q % 2])
                      : MulBf16(a[i][q], unit[q % 2]);
      }
    }
  }

 private:
  /// The low nibbles of bytes 0 and 2: e2m1 / 2^126 (FragmentF4), or 128 + u.
  __device__ __forceinline__ static uint32_t Nibbles(uint32_t w) {
    constexpr uint32_t kMask = 0x000f000fu;
    return IsFp4(kPacking) ? ((w & kMask) * 0x1040u) & 0x81c081c0u : MaskOr(w, kMask, kMagic);
  }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_IMPORTED_CUH_
