// Imported schemes, AVX-512: codes are indices into a register of 32 values.
//
// A register of fragments is rows g and g + 8 for all 16 channels: of each of four lanes four pairs
// of values. A pair's codes are the lowest bits of the two halves of the lane's word, shifted right
// by four times the number of the pair. Pairs 0 and 2 are of row g, 1 and 3 of row g + 8.
#if defined(__x86_64__)
#include "kernels/cpu/gemm_expanded.h"
#include "kernels/cpu/quantized_avx512.h"

namespace moert::kernels {
namespace {

constexpr int kHalfRows = kBlockRows / 2;
constexpr int64_t kPieceBytes4 = 128, kRowBytes4 = 16, kRegister = 64;

// The 16 bits `low` for the values of row g, `high` for those of row g + 8.
[[gnu::always_inline]] inline __m512i OfRows(uint32_t low, uint32_t high) {
  const uint64_t pairs = uint64_t{high * 0x10001u} << 32 | low * 0x10001u;
  return _mm512_set1_epi64(static_cast<int64_t>(pairs));
}

// The codes of rows g and g + 8 lowest in 16 bits each; above them are others.
[[gnu::always_inline]] inline __m512i Codes4(const uint8_t* words) {
  const __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  const __m512i shifts = _mm512_broadcast_i32x4(_mm_setr_epi16(0, 0, 4, 4, 8, 8, 12, 12));
  const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(words));
  return _mm512_srlv_epi16(_mm512_permutexvar_epi32(lanes, _mm512_castsi128_si512(four)), shifts);
}

// The whole numbers from -16 on as bf16, in the order of the lowest 5 bits.
[[gnu::always_inline]] inline __m512i SignedTable() {
  alignas(64) uint16_t values[32];
  for (int i = 0; i < 32; ++i) values[i] = Bf16Of(i < 16 ? i : i - 32);
  return _mm512_load_si512(values);
}

void ExpandInt4(const uint8_t* w, int64_t pieces, const uint8_t* zeros, uint8_t* to) {
  const __m512i table = SignedTable(), mask = _mm512_set1_epi16(15);
  for (int g = 0; g < kHalfRows; ++g) {
    const __m512i zero =
        zeros != nullptr ? OfRows(zeros[g], zeros[g + kHalfRows]) : _mm512_set1_epi16(8);
    for (int64_t i = 0; i < pieces; ++i) {
      const __m512i codes = Codes4(w + i * kPieceBytes4 + g * kRowBytes4);
      const __m512i value = _mm512_sub_epi16(_mm512_and_si512(codes, mask), zero);
      _mm512_store_si512(to + i * kBf16PieceBytes + g * kRegister,
                         _mm512_permutexvar_epi16(value, table));
    }
  }
}

// The 16 values of e2m1 codes times the scales of rows g and g + 8, as bf16.
[[gnu::always_inline]] inline __m512i ScaledTable(__m512 scales, int g) {
  // In the order in which packing brings codes 0, 1, 2 ... together.
  const __m512 first = _mm512_setr_ps(0, 0.5f, 1, 1.5f, -0.0f, -0.5f, -1, -1.5f, 0, 0.5f, 1, 1.5f,
                                      -0.0f, -0.5f, -1, -1.5f);
  const __m512 second = _mm512_setr_ps(2, 3, 4, 6, -2, -3, -4, -6, 2, 3, 4, 6, -2, -3, -4, -6);
  const __m512i rows = _mm512_add_epi32(
      _mm512_set1_epi32(g), _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8));
  const __m512 scale = _mm512_permutexvar_ps(rows, scales);
  const auto bf16 = [](__m512 x) { return _mm512_srli_epi32(_mm512_castps_si512(x), 16); };
  return _mm512_packus_epi32(bf16(_mm512_mul_ps(first, scale)), bf16(_mm512_mul_ps(second, scale)));
}

void ExpandE2M1(const uint8_t* w, int64_t pieces, const float* scales, uint8_t* to) {
  const __m512 all = _mm512_loadu_ps(scales);
  const __m512i mask = _mm512_set1_epi16(15), half = OfRows(0, 16);
  for (int g = 0; g < kHalfRows; ++g) {
    const __m512i table = ScaledTable(all, g);
    for (int64_t i = 0; i < pieces; ++i) {
      const __m512i codes = Codes4(w + i * kPieceBytes4 + g * kRowBytes4);
      // (codes & mask) | half
      const __m512i index = _mm512_ternarylogic_epi32(codes, mask, half, 0xea);
      _mm512_store_si512(to + i * kBf16PieceBytes + g * kRegister,
                         _mm512_permutexvar_epi16(index, table));
    }
  }
}

void ExpandE4M3(const uint8_t* w, int64_t pieces, uint8_t* to) {
  const __m512i table = MakeF8Table();
  const __m512i first = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
  const __m512i second = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
  for (int64_t at = 0; at < pieces * 256; at += kRegister) {
    // A lane's words of rows g and g + 8 follow each other.
    const __m512i words = _mm512_loadu_si512(w + at);
    const __m512i even = ExpandF8<false>(words, table), odd = ExpandF8<true>(words, table);
    _mm512_store_si512(to + at * 2, _mm512_permutex2var_epi64(even, first, odd));
    _mm512_store_si512(to + at * 2 + kRegister, _mm512_permutex2var_epi64(even, second, odd));
  }
}

}  // namespace

void BlockGemmExpandedW4Avx512(const BlockGemmArgs& args, BlockGemmFn inner, int64_t x_piece) {
  Gemm<Codes::kInt4, ExpandInt4>(args, inner, x_piece);
}
void BlockGemmExpandedF4Avx512(const BlockGemmArgs& args, BlockGemmFn inner, int64_t x_piece) {
  Gemm<Codes::kE2M1, ExpandE2M1>(args, inner, x_piece);
}
void BlockGemmExpandedF8Avx512(const BlockGemmArgs& args, BlockGemmFn inner, int64_t x_piece) {
  Gemm<Codes::kE4M3, ExpandE4M3>(args, inner, x_piece);
}

}  // namespace moert::kernels
#endif
