// Shared by the AVX-512 and AMX kernels of imported schemes: only for files compiled with those
// ISAs. Everything here is inlined by force and has internal linkage.
#ifndef MOERT_KERNELS_CPU_IMPORTED_AVX512_H_
#define MOERT_KERNELS_CPU_IMPORTED_AVX512_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/block_gemm.h"
#include "kernels/cpu/imported_codes.h"
#include "kernels/cpu/quantized_avx512.h"

namespace moert::kernels {

// A table of the bf16 values of codes, indexed by the lowest 5 bits of a 16-bit lane: int4 less 8,
// or signed numbers if a zero has been subtracted; e2m1, where the bit above the code is ignored.
template <ImportedCodes kCodes, bool kZeros>
[[gnu::always_inline]] static inline __m512i ImportedTable() {
  if constexpr (kCodes == ImportedCodes::kE4M3) return MakeF8Table();
  constexpr uint16_t kE2M1[] = {0,      0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
                                0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};
  alignas(64) uint16_t values[32];
  for (int i = 0; i < 32; ++i) {
    if (kCodes == ImportedCodes::kE2M1) {
      values[i] = kE2M1[i % 16];
    } else {
      values[i] = Bf16Of(kZeros ? (i < 16 ? i : i - 32) : i % 16 - 8);
    }
  }
  return _mm512_load_si512(values);
}

// 16 scales from the element `at` on, in the order of rows.
[[gnu::always_inline]] static inline __m512 ImportedScales(const uint8_t* scales, int form,
                                                           int64_t at) {
  const auto bytes = [&] { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + at)); };
  switch (form) {
    case kScaleE8M0: {
      const __m512i exponents = _mm512_cvtepu8_epi32(bytes());
      // 2^-127 is subnormal: half of 2^-126.
      const __mmask16 zero = _mm512_testn_epi32_mask(exponents, exponents);
      return _mm512_castsi512_ps(_mm512_mask_mov_epi32(_mm512_slli_epi32(exponents, 23), zero,
                                                       _mm512_set1_epi32(0x00400000)));
    }
    case kScaleE4M3:
      // Without sign: binary16 of 2^-8 of it.
      return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes()), 7)),
                           _mm512_set1_ps(256.0f));
    case kScaleF16:
      return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales + at * 2)));
    case kScaleBF16:
      return Widen(reinterpret_cast<const uint16_t*>(scales) + at);
    default:
      return _mm512_loadu_ps(scales + at * 4);
  }
}

// Prefetches a later piece of weights into L1.
template <int kBits>
[[gnu::always_inline]] static inline void FetchPiece(const uint8_t* w) {
#pragma GCC unroll 4
  for (int64_t line = 0; line < kBits * 32; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(w + kImportedAhead + line), _MM_HINT_T0);
  }
}

}  // namespace moert::kernels

#endif  // MOERT_KERNELS_CPU_IMPORTED_AVX512_H_
