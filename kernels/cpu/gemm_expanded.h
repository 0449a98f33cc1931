// Imported schemes: codes of a chunk become bf16 fragments in the L1 cache, which is exact, and the
// kernel of bf16 weights multiplies them, that of the set. int4 (less its zero) and e4m3 codes are
// expanded as they are, and the sums of a group are scaled; e2m1 codes are expanded times their
// scale, which bf16 holds.
//
// Only for files compiled with AVX2 or more; everything here is local to such a file. Their part,
// kExpand, turns `pieces` pieces from `w` on into fragments at `to`: int4: (w, pieces, zeros, to),
// zeros of 16 rows, or null for 8; e2m1: (w, pieces, scales, to), 32-byte aligned scales of 16
// rows; e4m3: (w, pieces, to).
#ifndef MOERT_KERNELS_CPU_GEMM_EXPANDED_H_
#define MOERT_KERNELS_CPU_GEMM_EXPANDED_H_

#include <immintrin.h>

#include "kernels/cpu/block_gemm.h"

namespace moert::kernels {
namespace {

constexpr int64_t kChunk = 8;     // pieces that are expanded together: a group, or groups of e2m1
constexpr int64_t kAhead = 8192;  // bytes of weights fetched ahead, kept in L1

enum class Codes { kInt4, kE2M1, kE4M3 };

// 16 scales as floats, rows 0..7 and 8..15.
void ReadScales(const uint8_t* from, int form, float* scales) {
  for (int half = 0; half < 2; ++half) {
    __m256 values;
    const int64_t row = half * 8;
    if (form == kScaleBF16) {
      const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + row * 2));
      values = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    } else if (form == kScaleF16) {
      values = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + row * 2)));
    } else if (form == kScaleF32) {
      values = _mm256_loadu_ps(reinterpret_cast<const float*>(from + row * 4));
    } else {
      const __m256i bytes =
          _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + row)));
      if (form == kScaleE8M0) {
        // 2^-127 is subnormal: half of 2^-126.
        const __m256i zero = _mm256_cmpeq_epi32(bytes, _mm256_setzero_si256());
        values = _mm256_castsi256_ps(_mm256_or_si256(
            _mm256_slli_epi32(bytes, 23), _mm256_and_si256(zero, _mm256_set1_epi32(0x00400000))));
      } else {
        // e4m3 without sign: binary16 of 2^-8 of it.
        const __m256i half_bits = _mm256_slli_epi32(bytes, 7);
        const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(half_bits),
                                                _mm256_extracti128_si256(half_bits, 1));
        values = _mm256_mul_ps(_mm256_cvtph_ps(packed), _mm256_set1_ps(256.0f));
      }
    }
    _mm256_store_ps(scales + row, values);
  }
}

// `count` pieces from `begin` on of row block b.
template <Codes kCodes, auto kExpand>
void Expand(const BlockGemmArgs& args, int b, int64_t begin, int64_t count, uint8_t* to) {
  constexpr int64_t kPieceBytes = kCodes == Codes::kE4M3 ? 256 : 128;
  const uint8_t* w = args.weights[b] + begin * kPieceBytes;
  for (int64_t line = 0; line < count * kPieceBytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(w + kAhead + line), _MM_HINT_T0);
  }
  if constexpr (kCodes == Codes::kE4M3) {
    kExpand(w, count, to);
  } else if constexpr (kCodes == Codes::kInt4) {
    const int64_t at = begin / args.group_k16s * args.scale_stride;
    kExpand(w, count, args.zeros[b] != nullptr ? args.zeros[b] + at : nullptr, to);
  } else {
    constexpr int64_t kWidth[] = {2, 2, 4, 1, 1};
    alignas(32) float scales[kBlockRows];
    for (int64_t i = 0; i < count;) {
      const int64_t group = (begin + i) / args.group_k16s;
      const int64_t end = (group + 1) * args.group_k16s - begin;
      const int64_t some = (end < count ? end : count) - i;
      uint8_t* const fragments = to + i * kBf16PieceBytes;
      if (group < args.groups) {
        ReadScales(args.raw_scales[b] + group * args.scale_stride * kWidth[args.scale_form],
                   args.scale_form, scales);
        kExpand(w + i * kPieceBytes, some, scales, fragments);
      } else {  // padding
        for (int64_t at = 0; at < some * kBf16PieceBytes; at += 32) {
          _mm256_store_si256(reinterpret_cast<__m256i*>(fragments + at), _mm256_setzero_si256());
        }
      }
      i += some;
    }
  }
}

// out += scale * sums of a chunk.
template <Codes kCodes>
void AddScaled(const BlockGemmArgs& args, int64_t begin, const float* sums) {
  constexpr int64_t kWidth[] = {2, 2, 4, 1, 1};
  for (int b = 0; b < args.blocks; ++b) {
    alignas(32) float scales[kBlockRows];
    if constexpr (kCodes == Codes::kE2M1) {
      const float scale = args.matrix_scale[b] != nullptr ? *args.matrix_scale[b] : 1.0f;
      for (float& s : scales) s = scale;
    } else {
      const int64_t at = begin / args.group_k16s * args.scale_stride * kWidth[args.scale_form];
      ReadScales(args.raw_scales[b] + at, args.scale_form, scales);
    }
    const __m256 low = _mm256_load_ps(scales), high = _mm256_load_ps(scales + 8);
    for (int c = 0; c < args.columns; ++c) {
      const int64_t row = (b * kMaxColumns + c) * kBlockRows;
      float* const out = args.out + row;
      _mm256_store_ps(out, _mm256_fmadd_ps(_mm256_load_ps(sums + row), low, _mm256_load_ps(out)));
      _mm256_store_ps(
          out + 8, _mm256_fmadd_ps(_mm256_load_ps(sums + row + 8), high, _mm256_load_ps(out + 8)));
    }
  }
}

template <Codes kCodes, auto kExpand>
void Gemm(const BlockGemmArgs& args, BlockGemmFn inner, int64_t x_piece) {
  alignas(64) uint8_t fragments[kMaxBlocks][kChunk * kBf16PieceBytes];
  alignas(64) float sums[kMaxBlocks * kMaxColumns * kBlockRows];
  for (int b = 0; b < args.blocks; ++b) {
    for (int c = 0; c < args.columns; ++c) {
      float* const out = args.out + (b * kMaxColumns + c) * kBlockRows;
      _mm256_store_ps(out, _mm256_setzero_ps());
      _mm256_store_ps(out + 8, _mm256_setzero_ps());
    }
  }
  BlockGemmArgs chunk = args;
  chunk.out = sums;
  chunk.next = fragments[0];
  for (int b = 0; b < args.blocks; ++b) chunk.weights[b] = fragments[b];
  const bool by_groups = kCodes != Codes::kE2M1 && args.group_k16s < kChunk;
  const int64_t step = by_groups ? args.group_k16s : kChunk;
  // Groups that are not there are padding.
  for (int64_t begin = 0; begin < args.k16s && begin / args.group_k16s < args.groups;
       begin += step) {
    const int64_t left = args.k16s - begin;
    chunk.k16s = left < step ? left : step;
    for (int b = 0; b < args.blocks; ++b) {
      Expand<kCodes, kExpand>(args, b, begin, chunk.k16s, fragments[b]);
    }
    for (int c = 0; c < args.columns; ++c) chunk.x[c] = args.x[c] + begin * x_piece;
    inner(chunk);
    AddScaled<kCodes>(args, begin, sums);
  }
}

}  // namespace
}  // namespace moert::kernels

#endif  // MOERT_KERNELS_CPU_GEMM_EXPANDED_H_
