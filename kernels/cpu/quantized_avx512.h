// Shared by the AVX-512 and AMX kernels of quantized weights: only for files compiled with those
// ISAs. Everything here is inlined by force and has internal linkage, so nothing of it
// can be linked into other files' code.
#ifndef MOERT_KERNELS_CPU_QUANTIZED_AVX512_H_
#define MOERT_KERNELS_CPU_QUANTIZED_AVX512_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/fetch_scales.h"

namespace moert::kernels {

[[gnu::always_inline]] static inline __m512i Load(const uint8_t* p) { return _mm512_load_si512(p); }

[[gnu::always_inline]] static inline __m512 Widen(const uint16_t* bf16) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bf16));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// Prefetches a later tile of weights into L1.
template <int kBits>
[[gnu::always_inline]] static inline void FetchWeights(const uint8_t* w) {
  constexpr int64_t kAhead = 8192;
#pragma GCC unroll 16
  for (int64_t line = 0; line < kBits * 128; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(w + kAhead + line), _MM_HINT_T0);
  }
}

// Sorts the words of a tile of codes of up to 4 bits by quads of input channels. Calls
// store<kPiece>(first, second, plane_first, plane_second) with the words of quads 0 and 1 of a
// piece, and of quads 2 and 3.
template <int kBits, class StorePiece>
[[gnu::always_inline]] static inline void ByQuads(const uint8_t* w, const StorePiece& store) {
  const auto first = [](const uint8_t* p) __attribute__((always_inline)) {
    return _mm512_unpacklo_epi32(Load(p), Load(p + 64));
  };
  const auto second = [](const uint8_t* p) __attribute__((always_inline)) {
    return _mm512_unpackhi_epi32(Load(p), Load(p + 64));
  };
  const __m512i none = _mm512_setzero_si512();
  if constexpr (kBits == 4) {
    // Words of rows g (low nibbles) and g + 8: g = 0..3 in the first 64 bytes, then 4..7.
    store.template operator()<0>(first(w), second(w), none, none);
    store.template operator()<1>(first(w + 128), second(w + 128), none, none);
    store.template operator()<2>(first(w + 256), second(w + 256), none, none);
    store.template operator()<3>(first(w + 384), second(w + 384), none, none);
  } else {
    const __m512i plane_first = kBits == 3 ? first(w + 256) : none;
    const __m512i plane_second = kBits == 3 ? second(w + 256) : none;
    __m512i a = first(w), b = second(w);
    store.template operator()<0>(a, b, plane_first, plane_second);
    store.template operator()<1>(a, b, plane_first, plane_second);
    a = first(w + 128), b = second(w + 128);
    store.template operator()<2>(a, b, plane_first, plane_second);
    store.template operator()<3>(a, b, plane_first, plane_second);
  }
}

// Codes as bf16, looked up by the low 5 bits of a 16-bit lane.
struct CodeTables {
  __m512i low;   // codes of up to 4 bits less their middle; of 8 bits, the low nibble
  __m512i high;  // of 8 bits: 16 times the high nibble less 128; of 2 and 3: codes two bits up
};

// bf16 of small integers: the high half of their float.
[[gnu::always_inline]] static inline uint16_t Bf16Of(int value) {
  const float f = static_cast<float>(value);
  uint32_t bits;
  __builtin_memcpy(&bits, &f, 4);
  return static_cast<uint16_t>(bits >> 16);
}

template <int kBits>
[[gnu::always_inline]] static inline CodeTables MakeCodeTables() {
  alignas(64) uint16_t low[32], high[32];
  constexpr int kMask = kBits < 4 ? (1 << kBits) - 1 : 15;
  for (int i = 0; i < 32; ++i) {
    low[i] = Bf16Of((i & kMask) - (kBits == 8 ? 0 : 1 << (kBits - 1)));
    high[i] =
        kBits == 8 ? Bf16Of((i & 15) * 16 - 128) : Bf16Of((i >> 2 & kMask) - (1 << (kBits - 1)));
  }
  return {_mm512_load_si512(low), _mm512_load_si512(high)};
}

// The values of the low 5 bits of an e4m3 code below 2^-6, as bf16.
[[gnu::always_inline]] static inline __m512i MakeF8Table() {
  alignas(64) uint16_t values[32];
  for (int i = 0; i < 32; ++i) {
    const float f = static_cast<float>(i & 7) * 0x1p-9f;
    uint32_t bits;
    __builtin_memcpy(&bits, &f, 4);
    values[i] = static_cast<uint16_t>(bits >> 16);
  }
  return _mm512_load_si512(values);
}

// The e4m3 codes in the low (or high) bytes of 16-bit lanes as bf16: 120 is added to exponents,
// except for codes below 2^-6, which have none and come from the table.
template <bool kHigh>
[[gnu::always_inline]] static inline __m512i ExpandF8(__m512i codes, __m512i table) {
  const __m512i shifted = kHigh ? _mm512_srli_epi16(codes, 4) : _mm512_slli_epi16(codes, 4);
  const __m512i index = kHigh ? _mm512_srli_epi16(codes, 8) : codes;
  const __m512i sign = kHigh ? codes : _mm512_slli_epi16(codes, 8);
  const __m512i magnitude = _mm512_add_epi16(_mm512_and_si512(shifted, _mm512_set1_epi16(0x7f0)),
                                             _mm512_set1_epi16(120 << 7));
  const __mmask32 small = _mm512_testn_epi16_mask(index, _mm512_set1_epi16(0x78));
  const __m512i value = _mm512_mask_permutexvar_epi16(magnitude, small, index, table);
  // value | (sign & 0x8000)
  return _mm512_ternarylogic_epi32(value, sign, _mm512_set1_epi16(static_cast<int16_t>(0x8000)),
                                   0xf8);
}

}  // namespace moert::kernels

#endif  // MOERT_KERNELS_CPU_QUANTIZED_AVX512_H_
