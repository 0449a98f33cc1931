// Packing of activations into the operand forms of the AVX-512 kernels.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/block_gemm.h"

namespace moert::kernels {
namespace {

// Rounds to bf16 (to nearest, ties to even, NaN stays NaN), as bits in the high half of each lane.
// Not vcvtneps2bf16: that flushes subnormals, and every kernel set shall round alike.
__m512i RoundToBf16(__m512i bits) {
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
  return _mm512_and_si512(_mm512_mask_mov_epi32(rounded, nan, quiet),
                          _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
}

__m512i LoadPiece(const float* x, int64_t valid, int64_t piece) {
  const int64_t left = valid - piece * kPieceK;
  const __mmask16 mask = left >= kPieceK ? 0xffff
                         : left <= 0     ? 0
                                         : static_cast<__mmask16>((1u << left) - 1);
  // Beyond the last channel there is no valid address.
  const int64_t begin = left > 0 ? piece * kPieceK : 0;
  return _mm512_castps_si512(_mm512_maskz_loadu_ps(mask, x + begin));
}

// fp32 operand: {2t, 2t+8, 2t+1, 2t+9} for t = 0..3.
template <bool kRound>
void PackF32(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  const __m512i order = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
  for (int64_t i = 0; i < k16s; ++i) {
    __m512i piece = LoadPiece(x, valid, i);
    if (kRound) piece = RoundToBf16(piece);
    _mm512_store_si512(out + i * 64, _mm512_permutexvar_epi32(order, piece));
  }
}

// To the nearest e4m3 value, ties to even; at most 448 in magnitude. As the AVX2 packing does it.
__m512 NearestF8(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 20), _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_and_si512(_mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7ffff)),
                       _mm512_set1_epi32(static_cast<int>(0xfff00000u)));
  const __m512 magnitude = _mm512_abs_ps(x);
  const __m512 step = _mm512_set1_ps(0x1.8p14f);  // 1.5 * 2^(23 - 9)
  const __m512i tiny =
      _mm512_or_si512(_mm512_castps_si512(_mm512_sub_ps(_mm512_add_ps(magnitude, step), step)),
                      _mm512_andnot_si512(_mm512_set1_epi32(0x7fffffff), bits));
  const __mmask16 is_tiny = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(0x1p-6f), _CMP_LT_OQ);
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(rounded, is_tiny, tiny));
}

}  // namespace

void PackF32Avx512(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  PackF32<false>(x, valid, k16s, out);
}

void PackRoundedAvx512(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  PackF32<true>(x, valid, k16s, out);
}

// bf16 operand: the channels in order.
void PackBf16Avx512(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  for (int64_t i = 0; i < k16s; ++i) {
    const __m512i high = _mm512_srli_epi32(RoundToBf16(LoadPiece(x, valid, i)), 16);
    _mm256_store_si256(reinterpret_cast<__m256i*>(out + i * 32), _mm512_cvtepi32_epi16(high));
  }
}

// bf16 values on the e4m3 grid: the channels in order, then TileScale[tiles].
void PackF8TokenAvx512(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  constexpr float kLimit = 448;
  constexpr float kSmallestMaximum = 1e-30f;  // as in the reference
  // The largest bits of a magnitude: infinities and NaN above all values.
  __m512i most = _mm512_setzero_si512();
  for (int64_t i = 0; i < k16s; ++i) {
    most = _mm512_max_epi32(
        most, _mm512_and_si512(LoadPiece(x, valid, i), _mm512_set1_epi32(0x7fffffff)));
  }
  const auto bits = static_cast<uint32_t>(_mm512_reduce_max_epi32(most));
  float largest;
  __builtin_memcpy(&largest, &bits, sizeof(largest));
  const bool zero = bits >= 0x7f800000u || largest < kSmallestMaximum;
  const float scale = bits >= 0x7f800000u ? __builtin_nanf("") : zero ? 0.0f : largest / kLimit;
  const __m512 inverse = _mm512_set1_ps(zero ? 0.0f : kLimit / largest);
  const __m512 limit = _mm512_set1_ps(kLimit), least = _mm512_set1_ps(-kLimit);
  for (int64_t i = 0; i < k16s; ++i) {
    __m512i piece = _mm512_setzero_si512();
    if (!zero) {
      const __m512 value = _mm512_mul_ps(_mm512_castsi512_ps(LoadPiece(x, valid, i)), inverse);
      piece = _mm512_castps_si512(NearestF8(_mm512_max_ps(_mm512_min_ps(value, limit), least)));
    }
    _mm256_store_si256(reinterpret_cast<__m256i*>(out + i * 32),
                       _mm512_cvtepi32_epi16(_mm512_srli_epi32(piece, 16)));
  }
  auto* scales = reinterpret_cast<TileScale*>(out + k16s * 32);
  for (int64_t tile = 0; tile < k16s / kTilePieces; ++tile) {
    scales[tile].scale = scale;
    scales[tile].sum = 0;
  }
}

}  // namespace moert::kernels
#endif
