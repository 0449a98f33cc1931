// Packing of activations into the fp32 operand form, AVX2.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/block_gemm.h"

namespace moert::kernels {
namespace {

// Rounds to bf16 (to nearest, ties to even, NaN stays NaN), as bits in the high half of each lane.
__m256i RoundToBf16(__m256i bits) {
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  return _mm256_and_si256(_mm256_blendv_epi8(rounded, quiet, nan),
                          _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
}

// {2t, 2t+8, 2t+1, 2t+9} for t = 0..3.
template <bool kRound>
void PackF32(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  for (int64_t i = 0; i < k16s; ++i) {
    __m256i half[2];
    for (int h = 0; h < 2; ++h) {
      const int64_t first = i * kPieceK + h * 8;
      const int64_t left = valid - first;
      const int count = left > 8 ? 8 : left < 0 ? 0 : static_cast<int>(left);
      const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lanes);
      half[h] = _mm256_castps_si256(_mm256_maskload_ps(count > 0 ? x + first : x, mask));
      if (kRound) half[h] = RoundToBf16(half[h]);
    }
    // Interleaved, in 128-bit lanes: t = 0 and 2, t = 1 and 3.
    const __m256i t02 = _mm256_unpacklo_epi32(half[0], half[1]);
    const __m256i t13 = _mm256_unpackhi_epi32(half[0], half[1]);
    auto* to = reinterpret_cast<__m256i*>(out + i * 64);
    _mm256_store_si256(to, _mm256_permute2x128_si256(t02, t13, 0x20));
    _mm256_store_si256(to + 1, _mm256_permute2x128_si256(t02, t13, 0x31));
  }
}

}  // namespace

void PackF32Avx2(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  PackF32<false>(x, valid, k16s, out);
}

void PackRoundedAvx2(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  PackF32<true>(x, valid, k16s, out);
}

}  // namespace moert::kernels
#endif
