// Imported schemes, AVX2, FMA and F16C.
#if defined(__x86_64__)
#include "kernels/cpu/gemm_expanded.h"

namespace moert::kernels {
namespace {

[[gnu::always_inline]] inline __m256i Load(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
[[gnu::always_inline]] inline void Store(uint8_t* p, __m256i v) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(p), v);
}

// The values of even and odd 16-bit lanes, as floats that bf16 holds -> bf16.
[[gnu::always_inline]] inline __m256i Join(__m256 even, __m256 odd) {
  return _mm256_or_si256(
      _mm256_srli_epi32(_mm256_castps_si256(even), 16),
      _mm256_and_si256(_mm256_castps_si256(odd), _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Four registers of one of a lane's words each -> that lane's four words, lane after lane.
[[gnu::always_inline]] inline void StoreLanes(__m256i a0, __m256i a1, __m256i a2, __m256i a3,
                                              uint8_t* to) {
  const __m256i low01 = _mm256_unpacklo_epi32(a0, a1), high01 = _mm256_unpackhi_epi32(a0, a1);
  const __m256i low23 = _mm256_unpacklo_epi32(a2, a3), high23 = _mm256_unpackhi_epi32(a2, a3);
  const __m256i lane0 = _mm256_unpacklo_epi64(low01, low23);  // of lanes 0 and 4
  const __m256i lane1 = _mm256_unpackhi_epi64(low01, low23);
  const __m256i lane2 = _mm256_unpacklo_epi64(high01, high23);
  const __m256i lane3 = _mm256_unpackhi_epi64(high01, high23);
  Store(to, _mm256_permute2x128_si256(lane0, lane1, 0x20));
  Store(to + 32, _mm256_permute2x128_si256(lane2, lane3, 0x20));
  Store(to + 64, _mm256_permute2x128_si256(lane0, lane1, 0x31));
  Store(to + 96, _mm256_permute2x128_si256(lane2, lane3, 0x31));
}

// The values of rows 2j and 2j + 1 (half 0) or 2j + 8 and 2j + 9, for the four lanes of each.
[[gnu::always_inline]] inline __m256 OfRows(const float* rows, int j, int half) {
  const float* at = rows + 2 * j + 8 * half;
  return _mm256_setr_m128(_mm_set1_ps(at[0]), _mm_set1_ps(at[1]));
}

// Nibbles of each half of a word, less `zeros`.
[[gnu::always_inline]] inline __m256i Int4(__m256i nibbles, __m256i zeros) {
  const __m256i v = _mm256_sub_epi16(nibbles, zeros);
  return Join(_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(v, 16), 16)),
              _mm256_cvtepi32_ps(_mm256_srai_epi32(v, 16)));
}

void ExpandInt4(const uint8_t* w, int64_t pieces, const uint8_t* zeros, uint8_t* to) {
  const __m256i mask = _mm256_set1_epi16(15);
  alignas(16) int16_t zero[kBlockRows];
  for (int r = 0; r < kBlockRows; ++r) {
    zero[r] = zeros != nullptr ? static_cast<int16_t>(zeros[r]) : int16_t{8};
  }
  for (int j = 0; j < 4; ++j) {
    const __m256i low =
        _mm256_setr_m128i(_mm_set1_epi16(zero[2 * j]), _mm_set1_epi16(zero[2 * j + 1]));
    const __m256i high =
        _mm256_setr_m128i(_mm_set1_epi16(zero[2 * j + 8]), _mm_set1_epi16(zero[2 * j + 9]));
    for (int64_t i = 0; i < pieces; ++i) {
      const __m256i word = Load(w + i * 128 + j * 32);
      StoreLanes(Int4(_mm256_and_si256(word, mask), low),
                 Int4(_mm256_and_si256(_mm256_srli_epi16(word, 4), mask), high),
                 Int4(_mm256_and_si256(_mm256_srli_epi16(word, 8), mask), low),
                 Int4(_mm256_srli_epi16(word, 12), high), to + i * kBf16PieceBytes + j * 128);
    }
  }
}

// e2m1 codes in the low four bits of each half of a word, times `scale`.
[[gnu::always_inline]] inline __m256i E2M1(__m256i codes, __m256 scale) {
  const __m256 table = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
  const __m256i sign = _mm256_set1_epi32(static_cast<int>(0x80000000u));
  const __m256 even = _mm256_permutevar8x32_ps(table, codes);
  const __m256 odd = _mm256_permutevar8x32_ps(table, _mm256_srli_epi32(codes, 16));
  const __m256 even_sign =
      _mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(codes, 28), sign));
  const __m256 odd_sign = _mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(codes, 12), sign));
  return Join(_mm256_mul_ps(_mm256_or_ps(even, even_sign), scale),
              _mm256_mul_ps(_mm256_or_ps(odd, odd_sign), scale));
}

void ExpandE2M1(const uint8_t* w, int64_t pieces, const float* scales, uint8_t* to) {
  const __m256i mask = _mm256_set1_epi16(15);
  for (int j = 0; j < 4; ++j) {
    const __m256 low = OfRows(scales, j, 0), high = OfRows(scales, j, 1);
    for (int64_t i = 0; i < pieces; ++i) {
      const __m256i word = Load(w + i * 128 + j * 32);
      StoreLanes(E2M1(_mm256_and_si256(word, mask), low),
                 E2M1(_mm256_and_si256(_mm256_srli_epi16(word, 4), mask), high),
                 E2M1(_mm256_and_si256(_mm256_srli_epi16(word, 8), mask), low),
                 E2M1(_mm256_srli_epi16(word, 12), high), to + i * kBf16PieceBytes + j * 128);
    }
  }
}

// e4m3 codes in the low bytes of 16-bit lanes as bf16. Below 2^-6 a code has no exponent.
[[gnu::always_inline]] inline __m256i E4M3(__m256i codes) {
  const __m256i subnormal = _mm256_setr_epi8(  // high bytes of the bf16 of m 2^-9, m = 0..7
      0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0,
      0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c);
  const __m256i subnormal_low =
      _mm256_setr_epi8(0, 0, static_cast<char>(0x80), static_cast<char>(0xc0), 0, 0x20, 0x40, 0x60,
                       0, 0, static_cast<char>(0x80), static_cast<char>(0xc0), 0, 0x20, 0x40, 0x60,
                       0, 0, static_cast<char>(0x80), static_cast<char>(0xc0), 0, 0x20, 0x40, 0x60,
                       0, 0, static_cast<char>(0x80), static_cast<char>(0xc0), 0, 0x20, 0x40, 0x60);
  const __m256i normal =
      _mm256_add_epi16(_mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x7f)), 4),
                       _mm256_set1_epi16(120 << 7));
  const __m256i mantissa = _mm256_and_si256(codes, _mm256_set1_epi16(7));
  const __m256i high = _mm256_slli_epi16(_mm256_shuffle_epi8(subnormal, mantissa), 8);
  const __m256i low =
      _mm256_and_si256(_mm256_shuffle_epi8(subnormal_low, mantissa), _mm256_set1_epi16(0xff));
  const __m256i small =
      _mm256_cmpeq_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x78)), _mm256_setzero_si256());
  const __m256i magnitude = _mm256_blendv_epi8(normal, _mm256_or_si256(high, low), small);
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x80)), 8);
  return _mm256_or_si256(magnitude, sign);
}

void ExpandE4M3(const uint8_t* w, int64_t pieces, uint8_t* to) {
  const __m256i mask = _mm256_set1_epi16(0xff);
  for (int64_t at = 0; at < pieces * 256; at += 32) {
    // A lane's words of rows g and g + 8 follow each other.
    const __m256i words = Load(w + at);
    const __m256i even = E4M3(_mm256_and_si256(words, mask));
    const __m256i odd = E4M3(_mm256_srli_epi16(words, 8));
    const __m256i low = _mm256_unpacklo_epi64(even, odd), high = _mm256_unpackhi_epi64(even, odd);
    Store(to + at * 2, _mm256_permute2x128_si256(low, high, 0x20));
    Store(to + at * 2 + 32, _mm256_permute2x128_si256(low, high, 0x31));
  }
}

}  // namespace

void BlockGemmExpandedW4Avx2(const BlockGemmArgs& args, BlockGemmFn inner, int64_t x_piece) {
  Gemm<Codes::kInt4, ExpandInt4>(args, inner, x_piece);
}
void BlockGemmExpandedF4Avx2(const BlockGemmArgs& args, BlockGemmFn inner, int64_t x_piece) {
  Gemm<Codes::kE2M1, ExpandE2M1>(args, inner, x_piece);
}
void BlockGemmExpandedF8Avx2(const BlockGemmArgs& args, BlockGemmFn inner, int64_t x_piece) {
  Gemm<Codes::kE4M3, ExpandE4M3>(args, inner, x_piece);
}

}  // namespace moert::kernels
#endif
