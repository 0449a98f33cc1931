// Shared by the AVX2 kernels of quantized weights: only for files compiled with that ISA.
// Everything here has internal linkage, so nothing of it can be linked into other files' code.
#ifndef MOERT_KERNELS_CPU_QUANTIZED_AVX2_H_
#define MOERT_KERNELS_CPU_QUANTIZED_AVX2_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/block_gemm.h"
#include "kernels/cpu/fetch_scales.h"

namespace moert::kernels {

// Helpers are inlined by force: accumulators passed by reference would otherwise live in memory.

constexpr int kColumnsAtOnce = 4;

[[gnu::always_inline]] static inline __m256i Load(const uint8_t* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}

[[gnu::always_inline]] static inline __m256 Widen(const uint16_t* bf16) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bf16));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// e4m3 codes in the high bytes of 16-bit lanes, the low ones zero, 2^-8 times as large in binary16.
[[gnu::always_inline]] static inline __m256i HalfOf(__m256i codes) {
  return _mm256_and_si256(_mm256_srai_epi16(codes, 1),
                          _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
}

// Prefetches later weights into L1.
[[gnu::always_inline]] static inline void FetchWeights(const uint8_t* w, int64_t bytes) {
  constexpr int64_t kAhead = 8192;
  for (int64_t line = 0; line < bytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(w + kAhead + line), _MM_HINT_T0);
  }
}

// Calls part<J, C>(j), which computes the accumulators [j, j + J) of kRows for C columns, with as
// many at once as the registers hold.
template <int kRows, class Part>
[[gnu::always_inline]] static inline void ByColumns(int columns, const Part& part) {
  constexpr int kHalf = kRows / 2, kQuarter = kRows / 4;
  if (columns == 1) {
    part.template operator()<kRows, 1>(0);
  } else if (columns == 2) {
    for (int j = 0; j < kRows; j += kHalf) part.template operator()<kHalf, 2>(j);
  } else if (columns == 3) {
    for (int j = 0; j < kRows; j += kQuarter) part.template operator()<kQuarter, 3>(j);
  } else {
    for (int j = 0; j < kRows; j += kQuarter) part.template operator()<kQuarter, 4>(j);
  }
}

// Stores the 16 rows of column c of a block.
[[gnu::always_inline]] static inline void StoreRows(const BlockGemmArgs& args, int block, int c,
                                                    __m256 low, __m256 high) {
  float* const to = args.out + (block * kMaxColumns + c) * kBlockRows;
  _mm256_store_ps(to, low);
  _mm256_store_ps(to + 8, high);
}

}  // namespace moert::kernels

#endif  // MOERT_KERNELS_CPU_QUANTIZED_AVX2_H_
