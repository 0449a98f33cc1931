// Shared by the kernels of vdpbf16ps with narrow weights: pairs of activations spread over the rows
// of a block, and the sums of its rows. Only for files compiled with AVX512-BF16; everything here
// is inlined by force and has internal linkage.
#ifndef MOERT_KERNELS_CPU_PAIRS_AVX512BF16_H_
#define MOERT_KERNELS_CPU_PAIRS_AVX512BF16_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/block_gemm.h"

namespace moert::kernels {

constexpr int kQuarters = 4;      // accumulators of a row block and column
constexpr int64_t kOperand = 32;  // bytes of a piece of x: 8 channel pairs in order

// A piece has, for every column, channel pairs 2t, 2t+1 and 2t+8, 2t+9.
template <int C>
struct Operand {
  __m512bh low[C], high[C];
};

// `kTwice`: for weights in which words of rows g and g + 8 alternate (8 bits).
template <int C, bool kTwice>
[[gnu::always_inline]] static inline Operand<C> Spread(const uint8_t* const (&column)[C],
                                                       int64_t piece) {
  Operand<C> x;
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    const auto* from = reinterpret_cast<const __m128i*>(column[c] + piece * kOperand);
    if constexpr (kTwice) {
      const __m512i pairs =
          _mm512_castsi256_si512(_mm256_load_si256(reinterpret_cast<const __m256i*>(from)));
      x.low[c] = reinterpret_cast<__m512bh>(_mm512_permutexvar_epi32(
          _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3), pairs));
      x.high[c] = reinterpret_cast<__m512bh>(_mm512_permutexvar_epi32(
          _mm512_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7, 4, 4, 5, 5, 6, 6, 7, 7), pairs));
    } else {
      x.low[c] = reinterpret_cast<__m512bh>(_mm512_broadcast_i32x4(_mm_load_si128(from)));
      x.high[c] = reinterpret_cast<__m512bh>(_mm512_broadcast_i32x4(_mm_load_si128(from + 1)));
    }
  }
  return x;
}

template <int C>
[[gnu::always_inline]] static inline void Add(__m512 (&acc)[C], __m512i weights,
                                              const __m512bh (&x)[C]) {
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    acc[c] = _mm512_dpbf16_ps(acc[c], reinterpret_cast<__m512bh>(weights), x[c]);
  }
}

// Codes in the low bits of each byte.
template <int C>
[[gnu::always_inline]] static inline void AddCodes(__m512 (&acc)[C], __m512i codes, __m512i table,
                                                   const Operand<C>& x) {
  Add<C>(acc, _mm512_permutexvar_epi16(codes, table), x.low);
  Add<C>(acc, _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 8), table), x.high);
}

// Quarters -> the 16 rows in order, each the sum (t0 + t2) + (t1 + t3) of its lanes.
[[gnu::always_inline]] static inline __m512 Rows(__m512 q0, __m512 q1, __m512 q2, __m512 q3) {
  const __m512 q01 = _mm512_add_ps(_mm512_unpacklo_ps(q0, q1), _mm512_unpackhi_ps(q0, q1));
  const __m512 q23 = _mm512_add_ps(_mm512_unpacklo_ps(q2, q3), _mm512_unpackhi_ps(q2, q3));
  const __m512d a = _mm512_castps_pd(q01), b = _mm512_castps_pd(q23);
  // 128-bit lane i: rows i, i + 4, i + 8, i + 12.
  const __m512 sum = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                                   _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  return _mm512_permutexvar_ps(
      _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), sum);
}

[[gnu::always_inline]] static inline __m512 Rows8(__m512 q0, __m512 q1, __m512 q2, __m512 q3) {
  const __m512 q01 =
      _mm512_add_ps(_mm512_shuffle_f32x4(q0, q1, 0x88), _mm512_shuffle_f32x4(q0, q1, 0xdd));
  const __m512 q23 =
      _mm512_add_ps(_mm512_shuffle_f32x4(q2, q3, 0x88), _mm512_shuffle_f32x4(q2, q3, 0xdd));
  const __m512d a = _mm512_castps_pd(q01), b = _mm512_castps_pd(q23);
  // 128-bit lane i: rows i, i + 8, i + 4, i + 12.
  const __m512 sum = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                                   _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  return _mm512_permutexvar_ps(
      _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15), sum);
}

}  // namespace moert::kernels

#endif  // MOERT_KERNELS_CPU_PAIRS_AVX512BF16_H_
