// Quantization of activation rows to int8 (or int4 in int8) and to e4m3, AVX2: the same bytes as
// the reference. Every set with AVX2 uses it for integers, as packing is a small share of any
// product.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/block_gemm.h"

namespace moert::kernels {
namespace {

constexpr float kSmallestMaximum = 1e-30f;  // as in the reference

// Channels [first, first + 8) of a row of `valid`, the others zero.
__m256 LoadEight(const float* x, int64_t valid, int64_t first) {
  const int64_t left = valid - first;
  if (left >= 8) return _mm256_loadu_ps(x + first);
  if (left <= 0) return _mm256_setzero_ps();
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_maskload_ps(x + first,
                            _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(left)), lanes));
}

// The largest bits of a magnitude: ordered like the values, infinities and NaN above all of them.
uint32_t LargestBits(const float* x, int64_t valid, int64_t begin, int64_t end) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i most = _mm256_setzero_si256();
  for (int64_t k = begin; k < end; k += 8) {
    const __m256i bits = _mm256_castps_si256(LoadEight(x, valid, k));
    most = _mm256_max_epi32(most, _mm256_and_si256(bits, magnitude));
  }
  alignas(32) uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), most);
  uint32_t largest = 0;
  for (int i = 0; i < 8; ++i) largest = lanes[i] > largest ? lanes[i] : largest;
  return largest;
}

__m256i Quantize(__m256 x, __m256 inverse, __m256i limit) {
  const __m256i rounded = _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse));
  return _mm256_max_epi32(_mm256_min_epi32(rounded, limit),
                          _mm256_sub_epi32(_mm256_setzero_si256(), limit));
}

void PackInt(const float* x, int64_t valid, int64_t k16s, int64_t group_tiles, int limit,
             uint8_t* out) {
  const int64_t tiles = k16s / kTilePieces;
  if (group_tiles == 0) group_tiles = tiles;
  const __m256i limits = _mm256_set1_epi32(limit);
  // Channels 0..15 -> 0, 8, 1, 9 | 2, 10, 3, 11 | ..., as the weights' words are.
  const __m128i order = _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
  auto* scales = reinterpret_cast<TileScale*>(out + tiles * kTileK);
  float scale = 0;
  __m256 inverse = _mm256_setzero_ps();
  bool zero = true;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    if (tile % group_tiles == 0) {
      const int64_t end = tile + group_tiles < tiles ? tile + group_tiles : tiles;
      const uint32_t bits = LargestBits(x, valid, tile * kTileK, end * kTileK);
      const float largest =
          _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(bits))));
      zero = bits >= 0x7f800000u || largest < kSmallestMaximum;
      scale = bits >= 0x7f800000u ? __builtin_nanf("")
              : zero              ? 0.0f
                                  : largest / static_cast<float>(limit);
      inverse = _mm256_set1_ps(zero ? 0.0f : static_cast<float>(limit) / largest);
    }
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < kTilePieces; ++i) {
      const int64_t first = tile * kTileK + i * kPieceK;
      __m256i low = _mm256_setzero_si256(), high = low;
      if (!zero) {
        low = Quantize(LoadEight(x, valid, first), inverse, limits);
        high = Quantize(LoadEight(x, valid, first + 8), inverse, limits);
      }
      sum = _mm256_add_epi32(sum, _mm256_add_epi32(low, high));
      // In 128-bit lanes: 0..3, 8..11 | 4..7, 12..15; then back in order, then to bytes.
      const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
      const __m128i bytes =
          _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
      _mm_store_si128(reinterpret_cast<__m128i*>(out + first), _mm_shuffle_epi8(bytes, order));
    }
    alignas(32) int32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sum);
    int32_t total = 0;
    for (int i = 0; i < 8; ++i) total += lanes[i];
    scales[tile].scale = scale;
    scales[tile].sum = total;
  }
}

// To the nearest e4m3 value, ties to even; at most 448 in magnitude.
__m256 NearestF8(__m256 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  // Keeps three bits of the mantissa, and below 2^-6 multiples of 2^-9. The latter are rounded by
  // adding a number whose last bit is 2^-9.
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 20), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_and_si256(_mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7ffff)),
                       _mm256_set1_epi32(static_cast<int>(0xfff00000u)));
  const __m256 magnitude = _mm256_andnot_ps(sign, x);
  const __m256 step = _mm256_set1_ps(0x1.8p14f);  // 1.5 * 2^(23 - 9)
  const __m256 tiny = _mm256_sub_ps(_mm256_add_ps(magnitude, step), step);
  const __m256 is_tiny = _mm256_cmp_ps(magnitude, _mm256_set1_ps(0x1p-6f), _CMP_LT_OQ);
  return _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_or_ps(tiny, _mm256_and_ps(sign, x)),
                          is_tiny);
}

}  // namespace

void PackF8TokenAvx2(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  constexpr float kLimit = 448;
  const int64_t tiles = k16s / kTilePieces, channels = tiles * kTileK;
  const uint32_t bits = LargestBits(x, valid, 0, channels);
  const float largest = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(bits))));
  const bool zero = bits >= 0x7f800000u || largest < kSmallestMaximum;
  const float scale = bits >= 0x7f800000u ? __builtin_nanf("") : zero ? 0.0f : largest / kLimit;
  const __m256 inverse = _mm256_set1_ps(zero ? 0.0f : kLimit / largest);
  const __m256 limit = _mm256_set1_ps(kLimit), least = _mm256_set1_ps(-kLimit);
  auto* values = reinterpret_cast<float*>(out);
  for (int64_t k = 0; k < channels; k += 8) {
    __m256 value = _mm256_setzero_ps();
    if (!zero) {
      value = _mm256_mul_ps(LoadEight(x, valid, k), inverse);
      value = NearestF8(_mm256_max_ps(_mm256_min_ps(value, limit), least));
    }
    _mm256_store_ps(values + k, value);
  }
  auto* scales = reinterpret_cast<TileScale*>(out + channels * static_cast<int64_t>(sizeof(float)));
  for (int64_t tile = 0; tile < tiles; ++tile) {
    scales[tile].scale = scale;
    scales[tile].sum = 0;
  }
}

void PackInt8GroupAvx2(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  PackInt(x, valid, k16s, kInt8GroupTiles, 127, out);
}
void PackInt8TokenAvx2(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  PackInt(x, valid, k16s, 0, 127, out);
}
void PackInt4GroupAvx2(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  PackInt(x, valid, k16s, kInt8GroupTiles, 7, out);
}
void PackInt4TokenAvx2(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  PackInt(x, valid, k16s, 0, 7, out);
}

}  // namespace moert::kernels
#endif
