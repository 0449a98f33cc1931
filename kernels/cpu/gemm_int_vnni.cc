// Integer activations x quantized weights, AVX-512 VNNI (vpdpbusd). Codes are unsigned bytes made
// in registers by shifts and masks; the contribution of their zero points is subtracted once per
// flush, using the activations' sums. Four accumulators hold the 16 rows of a block, 4 channels of
// a piece a lane; they are summed over lanes in integers, so the result is exact and equals every
// other set's.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/block_gemm.h"
#include "kernels/cpu/quantized_avx512.h"

namespace moert::kernels {
namespace {

// Helpers are inlined by force: accumulators passed by reference would otherwise live in memory.

constexpr int kQuarters = 4;       // accumulators of a row block and column
constexpr int kColumnsAtOnce = 4;  // their accumulators fit the registers

// Field kField of each byte. For fields 0 and 1 `word` has the word itself, for fields 2 and 3 the
// upper halves of its bytes, shifted down. Odd fields stay two bits up, so the accumulators of rows
// 8..15 hold four times their sums. Codes of 3 bits have bit kPlaneBit of `plane` as the third bit.
// Bits that a shift drags over byte borders are masked off.
template <int kBits, int kField, int kPlaneBit>
[[gnu::always_inline]] inline __m512i Field(__m512i word, __m512i plane) {
  constexpr int kUp = kField % 2 * 2;
  if constexpr (kBits == 2) return _mm512_and_si512(word, _mm512_set1_epi8(3 << kUp));
  constexpr int kShift = kPlaneBit - 2 - kUp;
  const __m512i bit = kShift >= 0 ? _mm512_srli_epi16(plane, kShift >= 0 ? kShift : 0)
                                  : _mm512_slli_epi16(plane, kShift >= 0 ? 0 : -kShift);
  // (word & 3) | (bit & 4)
  return _mm512_ternarylogic_epi32(word, _mm512_set1_epi8(3 << kUp),
                                   _mm512_and_si512(bit, _mm512_set1_epi8(4 << kUp)), 0xea);
}

template <int C>
[[gnu::always_inline]] inline void Add(__m512i (&acc)[kQuarters][C], int quarter, __m512i codes,
                                       const __m512i (&x)[C]) {
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) acc[quarter][c] = _mm512_dpbusd_epi32(acc[quarter][c], codes, x[c]);
}

// The 16 codes of piece `p` of every column, for each row: lane g * 4 + t.
template <int C>
[[gnu::always_inline]] inline void Spread(const uint8_t* const (&column)[C], int64_t p,
                                          __m512i (&x)[C]) {
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    x[c] = _mm512_broadcast_i32x4(
        _mm_load_si128(reinterpret_cast<const __m128i*>(column[c] + p * kPieceK)));
  }
}

template <int kBits, int kWords, int C>
[[gnu::always_inline]] inline void AddPieces(__m512i (&acc)[kQuarters][C], const uint8_t* w,
                                             __m512i plane_a, __m512i plane_b,
                                             const uint8_t* const (&column)[C], int64_t p) {
  constexpr int kFirst = kWords * 4;  // bit of the third-bit plane
  const __m512i a = Load(w), b = Load(w + 64);
  __m512i x[C];
  Spread<C>(column, p, x);
  Add<C>(acc, 0, Field<kBits, 0, kFirst>(a, plane_a), x);
  Add<C>(acc, 1, Field<kBits, 0, kFirst>(b, plane_b), x);
  Add<C>(acc, 2, Field<kBits, 1, kFirst + 1>(a, plane_a), x);
  Add<C>(acc, 3, Field<kBits, 1, kFirst + 1>(b, plane_b), x);
  Spread<C>(column, p + 1, x);
  const __m512i upper_a = _mm512_srli_epi16(a, 4), upper_b = _mm512_srli_epi16(b, 4);
  Add<C>(acc, 0, Field<kBits, 2, kFirst + 2>(upper_a, plane_a), x);
  Add<C>(acc, 1, Field<kBits, 2, kFirst + 2>(upper_b, plane_b), x);
  Add<C>(acc, 2, Field<kBits, 3, kFirst + 3>(upper_a, plane_a), x);
  Add<C>(acc, 3, Field<kBits, 3, kFirst + 3>(upper_b, plane_b), x);
}

// Quarters -> the 16 rows in order.
[[gnu::always_inline]] inline __m512i Rows(__m512i q0, __m512i q1, __m512i q2, __m512i q3) {
  const __m512i q01 =
      _mm512_add_epi32(_mm512_unpacklo_epi32(q0, q1), _mm512_unpackhi_epi32(q0, q1));
  const __m512i q23 =
      _mm512_add_epi32(_mm512_unpacklo_epi32(q2, q3), _mm512_unpackhi_epi32(q2, q3));
  // 128-bit lane i: rows i, i + 4, i + 8, i + 12.
  const __m512i sum =
      _mm512_add_epi32(_mm512_unpacklo_epi64(q01, q23), _mm512_unpackhi_epi64(q01, q23));
  return _mm512_permutexvar_epi32(
      _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), sum);
}

// The same of 8-bit weights, where a word of row g and one of row g + 8 alternate.
[[gnu::always_inline]] inline __m512i Rows8(__m512i q0, __m512i q1, __m512i q2, __m512i q3) {
  const __m512i q01 =
      _mm512_add_epi32(_mm512_shuffle_i32x4(q0, q1, 0x88), _mm512_shuffle_i32x4(q0, q1, 0xdd));
  const __m512i q23 =
      _mm512_add_epi32(_mm512_shuffle_i32x4(q2, q3, 0x88), _mm512_shuffle_i32x4(q2, q3, 0xdd));
  // 128-bit lane i: rows i, i + 8, i + 4, i + 12.
  const __m512i sum =
      _mm512_add_epi32(_mm512_unpacklo_epi64(q01, q23), _mm512_unpackhi_epi64(q01, q23));
  return _mm512_permutexvar_epi32(
      _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15), sum);
}

// dots[c] = sums over `tiles` tiles of codes x activations, for 16 rows and C columns.
template <int kBits, int C, bool kFetch>
[[gnu::always_inline]] inline void Dots(const uint8_t* w, int64_t tiles, const uint8_t* const* x,
                                        int64_t x_offset, __m512i* dots) {
  constexpr int64_t kTileBytes = kBits * 128;
  __m512i acc[kQuarters][C];  // 32 bits hold 16 times a sum of kMaxFlushTiles tiles of nibbles
  const uint8_t* column[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    column[c] = x[c] + x_offset;
#pragma GCC unroll 4
    for (int q = 0; q < kQuarters; ++q) acc[q][c] = _mm512_setzero_si512();
  }
  for (int64_t tile = 0; tile < tiles; ++tile, w += kTileBytes) {
    if constexpr (kFetch) FetchWeights<kBits>(w);
    const int64_t p = tile * kTilePieces;
    if constexpr (kBits == 8) {
      const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3);
#pragma GCC unroll 4
      for (int i = 0; i < kTilePieces; ++i) {
        __m512i operand[C];
        Spread<C>(column, p + i, operand);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) operand[c] = _mm512_permutexvar_epi32(twice, operand[c]);
#pragma GCC unroll 4
        for (int q = 0; q < kQuarters; ++q) Add<C>(acc, q, Load(w + i * 256 + q * 64), operand);
      }
    } else if constexpr (kBits == 4) {
      // The accumulators of high nibbles hold 16 times their sums.
      const __m512i low = _mm512_set1_epi8(15), high = _mm512_set1_epi8(static_cast<char>(0xf0));
#pragma GCC unroll 4
      for (int i = 0; i < kTilePieces; ++i) {
        __m512i operand[C];
        Spread<C>(column, p + i, operand);
        const __m512i a = Load(w + i * 128), b = Load(w + i * 128 + 64);
        Add<C>(acc, 0, _mm512_and_si512(a, low), operand);
        Add<C>(acc, 1, _mm512_and_si512(b, low), operand);
        Add<C>(acc, 2, _mm512_and_si512(a, high), operand);
        Add<C>(acc, 3, _mm512_and_si512(b, high), operand);
      }
    } else {
      __m512i plane_a = _mm512_setzero_si512(), plane_b = plane_a;
      if constexpr (kBits == 3) {
        plane_a = Load(w + 256);
        plane_b = Load(w + 320);
      }
      AddPieces<kBits, 0, C>(acc, w, plane_a, plane_b, column, p);
      AddPieces<kBits, 1, C>(acc, w + 128, plane_a, plane_b, column, p + 2);
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    constexpr int kUp = kBits == 8 ? 0 : kBits == 4 ? 4 : 2;  // of rows 8..15
    acc[2][c] = _mm512_srai_epi32(acc[2][c], kUp);
    acc[3][c] = _mm512_srai_epi32(acc[3][c], kUp);
    dots[c] = kBits == 8 ? Rows8(acc[0][c], acc[1][c], acc[2][c], acc[3][c])
                         : Rows(acc[0][c], acc[1][c], acc[2][c], acc[3][c]);
  }
}

template <int kBits, bool kFetch>
void DotsOf(int columns, const uint8_t* w, int64_t tiles, const uint8_t* const* x, int64_t x_offset,
            __m512i* dots) {
  switch (columns) {
    case 1:
      return Dots<kBits, 1, kFetch>(w, tiles, x, x_offset, dots);
    case 2:
      return Dots<kBits, 2, kFetch>(w, tiles, x, x_offset, dots);
    case 3:
      return Dots<kBits, 3, kFetch>(w, tiles, x, x_offset, dots);
    default:
      return Dots<kBits, 4, kFetch>(w, tiles, x, x_offset, dots);
  }
}

// kOne: there is one column, and everything stays in registers.
template <int kBits, bool kOne>
void Gemm(const BlockGemmArgs& args) {
  const int64_t tiles = args.k16s / kTilePieces;
  const int columns = kOne ? 1 : args.columns;
  for (int b = 0; b < args.blocks; ++b) {
    __m512 sums[kOne ? 1 : kNarrowColumns];
    for (int c = 0; c < columns; ++c) sums[c] = _mm512_setzero_ps();
    for (int64_t begin = 0; begin < tiles; begin += args.flush_tiles) {
      const int64_t left = tiles - begin;
      const int64_t count = left < args.flush_tiles ? left : args.flush_tiles;
      const uint8_t* w = args.weights[b] + begin * kBits * 128;
      __m512i dots[kOne ? 1 : kNarrowColumns];
      if constexpr (kOne) {
        Dots<kBits, 1, true>(w, count, args.x, begin * kTileK, dots);
      } else {
        const int first = columns < kColumnsAtOnce ? columns : kColumnsAtOnce;
        DotsOf<kBits, true>(first, w, count, args.x, begin * kTileK, dots);
        if (columns > first) {
          DotsOf<kBits, false>(columns - first, w, count, args.x + first, begin * kTileK,
                               dots + first);
        }
      }
      const int64_t at = begin / args.group_tiles * args.scale_stride;
      FetchScales(args, b, at);
      const __m512 scale = Widen(args.scales[b] + at);
      const bool symmetric = args.offsets[b] == nullptr;
      const __m512 offset = symmetric ? scale : Widen(args.offsets[b] + at);
      for (int c = 0; c < columns; ++c) {
        const auto* scales = reinterpret_cast<const TileScale*>(args.x[c] + tiles * kTileK) + begin;
        int32_t sum = 0;
        for (int64_t tile = 0; tile < count; ++tile) sum += scales[tile].sum;
        const __m512 x_scale = _mm512_set1_ps(scales[0].scale);
        if (symmetric) {
          const __m512i dot = _mm512_sub_epi32(dots[c], _mm512_set1_epi32(sum << (kBits - 1)));
          sums[c] =
              _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(scale, x_scale), sums[c]);
        } else {
          sums[c] =
              _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[c]), _mm512_mul_ps(scale, x_scale), sums[c]);
          sums[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_set1_epi32(-sum)),
                                    _mm512_mul_ps(offset, x_scale), sums[c]);
        }
      }
    }
    for (int c = 0; c < columns; ++c) {
      _mm512_store_ps(args.out + (b * kMaxColumns + c) * kBlockRows, sums[c]);
    }
  }
}

template <int kBits>
void Gemm(const BlockGemmArgs& args) {
  return args.columns == 1 ? Gemm<kBits, true>(args) : Gemm<kBits, false>(args);
}

}  // namespace

void BlockGemmIntW8Vnni(const BlockGemmArgs& args) { Gemm<8>(args); }
void BlockGemmIntW4Vnni(const BlockGemmArgs& args) { Gemm<4>(args); }
void BlockGemmIntW3Vnni(const BlockGemmArgs& args) { Gemm<3>(args); }
void BlockGemmIntW2Vnni(const BlockGemmArgs& args) { Gemm<2>(args); }

}  // namespace moert::kernels
#endif
