// Integer activations x quantized weights, AVX2 (vpmaddubsw). Codes below 16 are summed in 16 bits
// over at most 128 channels: 8 pieces of two products of at most 15 * 127 a lane are 30480. 8-bit
// codes are multiplied as signed numbers, |w| by sign(w) x, and widened at once: two products of at
// most 128 * 127 fit. The sums, and so the results, are those of the VNNI kernels.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/block_gemm.h"
#include "kernels/cpu/quantized_avx2.h"

namespace moert::kernels {
namespace {

constexpr int64_t kChunkTiles = 2;  // their sums fit 16 bits, and they stay in L1 for all columns

// The 16 codes of a piece of a column for two rows: lane g * 4 + t.
[[gnu::always_inline]] inline __m256i Spread(const uint8_t* column, int64_t piece) {
  return _mm256_broadcastsi128_si256(
      _mm_load_si128(reinterpret_cast<const __m128i*>(column + piece * kPieceK)));
}

// Codes of 3 bits are as in the VNNI kernels.
template <int kField, int kPlaneBit>
[[gnu::always_inline]] inline __m256i Field(__m256i word, __m256i plane) {
  const __m256i low = _mm256_and_si256(_mm256_srli_epi16(word, 2 * kField), _mm256_set1_epi8(3));
  const __m256i bit = kPlaneBit >= 2 ? _mm256_srli_epi16(plane, kPlaneBit >= 2 ? kPlaneBit - 2 : 0)
                                     : _mm256_slli_epi16(plane, kPlaneBit >= 2 ? 0 : 2 - kPlaneBit);
  return _mm256_or_si256(low, _mm256_and_si256(bit, _mm256_set1_epi8(4)));
}

template <int C>
[[gnu::always_inline]] inline void Add16(__m256i (&acc)[C], __m256i codes, const __m256i (&x)[C]) {
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) acc[c] = _mm256_add_epi16(acc[c], _mm256_maddubs_epi16(codes, x[c]));
}

// Two pieces of 2- and 3-bit codes. Codes of 2 bits in rows 2j+8, 2j+9 are not shifted down from
// two bits up, which makes their sums four times as large: at most 4 * 6096 a lane.
template <int kBits, int kWords, int C>
[[gnu::always_inline]] inline void AddPieces(__m256i (&low)[C], __m256i (&high)[C], __m256i word,
                                             __m256i plane, const __m256i (&x0)[C],
                                             const __m256i (&x1)[C]) {
  if constexpr (kBits == 2) {
    const __m256i mask = _mm256_set1_epi8(3), mask4 = _mm256_set1_epi8(12);
    const __m256i upper = _mm256_srli_epi16(word, 4);
    Add16<C>(low, _mm256_and_si256(word, mask), x0);
    Add16<C>(high, _mm256_and_si256(word, mask4), x0);
    Add16<C>(low, _mm256_and_si256(upper, mask), x1);
    Add16<C>(high, _mm256_and_si256(upper, mask4), x1);
  } else {
    constexpr int kFirst = kWords * 4;
    Add16<C>(low, Field<0, kFirst>(word, plane), x0);
    Add16<C>(high, Field<1, kFirst + 1>(word, plane), x0);
    Add16<C>(low, Field<2, kFirst + 2>(word, plane), x1);
    Add16<C>(high, Field<3, kFirst + 3>(word, plane), x1);
  }
}

// Multiplies one tile, rows 2j, 2j+1 (low) and 2j+8, 2j+9 (high) for J of the four j; `w` points at
// the first of them.
template <int kBits, int J, int C>
[[gnu::always_inline]] inline void AddTile(const uint8_t* w, const uint8_t* const (&column)[C],
                                           int64_t piece, __m256i (&low)[J][C],
                                           __m256i (&high)[J][C]) {
  if constexpr (kBits == 4) {
    const __m256i mask = _mm256_set1_epi8(15);
#pragma GCC unroll 4
    for (int i = 0; i < kTilePieces; ++i) {
      __m256i operand[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) operand[c] = Spread(column[c], piece + i);
#pragma GCC unroll 4
      for (int j = 0; j < J; ++j) {
        const __m256i word = Load(w + i * 128 + j * 32);
        Add16<C>(low[j], _mm256_and_si256(word, mask), operand);
        Add16<C>(high[j], _mm256_and_si256(_mm256_srli_epi16(word, 4), mask), operand);
      }
    }
  } else {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256i x0[C], x1[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        x0[c] = Spread(column[c], piece + half * 2);
        x1[c] = Spread(column[c], piece + half * 2 + 1);
      }
#pragma GCC unroll 4
      for (int j = 0; j < J; ++j) {
        const __m256i word = Load(w + half * 128 + j * 32);
        const __m256i plane = kBits == 3 ? Load(w + 256 + j * 32) : word;
        if (half == 0) {
          AddPieces<kBits, 0, C>(low[j], high[j], word, plane, x0, x1);
        } else {
          AddPieces<kBits, 1, C>(low[j], high[j], word, plane, x0, x1);
        }
      }
    }
  }
}

// The 16-bit sums of at most kChunkTiles tiles, for j in [j0, j0 + J).
template <int kBits, int J, int C>
void SmallCodes(const uint8_t* w, int64_t tiles, const uint8_t* const* x, int64_t x_offset, int j0,
                __m256i (*sums)[2][4]) {
  __m256i low[J][C], high[J][C];
  const uint8_t* column[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    column[c] = x[c] + x_offset;
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) low[j][c] = high[j][c] = _mm256_setzero_si256();
  }
  w += j0 * 32;
  for (int64_t tile = 0; tile < tiles; ++tile, w += kBits * 128) {
    AddTile<kBits, J, C>(w, column, tile * kTilePieces, low, high);
  }
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) {
      sums[c][0][j0 + j] = low[j][c];
      sums[c][1][j0 + j] = high[j][c];
    }
  }
}

// Rows j and j + 8 for j in [j0, j0 + J); signed codes u - 128.
template <int J, int C>
void Bytes(const uint8_t* w, int64_t tiles, const uint8_t* const* x, int64_t x_offset, int j0,
           __m256i (*sums)[2][4]) {
  const __m256i middle = _mm256_set1_epi8(static_cast<char>(0x80));
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  __m256i acc[J][C];
  const uint8_t* column[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    column[c] = x[c] + x_offset;
#pragma GCC unroll 8
    for (int j = 0; j < J; ++j) acc[j][c] = sums[c][(j0 + j) / 4][(j0 + j) % 4];
  }
  w += j0 * 32;
  for (int64_t piece = 0; piece < tiles * kTilePieces; ++piece, w += 256) {
    __m256i operand[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      operand[c] = _mm256_permutevar8x32_epi32(Spread(column[c], piece), twice);
    }
#pragma GCC unroll 8
    for (int j = 0; j < J; ++j) {
      const __m256i code = _mm256_xor_si256(Load(w + j * 32), middle);
      const __m256i magnitude = _mm256_abs_epi8(code);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        const __m256i pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(operand[c], code));
        acc[j][c] = _mm256_add_epi32(acc[j][c], _mm256_madd_epi16(pairs, ones));
      }
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
    for (int j = 0; j < J; ++j) sums[c][(j0 + j) / 4][(j0 + j) % 4] = acc[j][c];
  }
}

template <int kBits>
void Columns(int count, const uint8_t* w, int64_t tiles, const uint8_t* const* x, int64_t x_offset,
             __m256i (*sums)[2][4]) {
  ByColumns<kBits == 8 ? 8 : 4>(
      count, [&]<int J, int C>(int j) __attribute__((always_inline)) {
        if constexpr (kBits == 8) {
          Bytes<J, C>(w, tiles, x, x_offset, j, sums);
        } else {
          SmallCodes<kBits, J, C>(w, tiles, x, x_offset, j, sums);
        }
      });
}

// Codes of 8 bits have sums[j / 4][j % 4]: row j in even lanes, row j + 8 in odd ones, 4 of each.
// Gives rows 0..7 and 8..15 in the order of RowsOf.
[[gnu::always_inline]] inline void RowsOfBytes(const __m256i (&sums)[2][4], __m256i (&rows)[2]) {
  __m256i quad[2];
  for (int half = 0; half < 2; ++half) {
    const __m256i* s = sums[half];
    const __m256i a = _mm256_add_epi32(_mm256_permute2x128_si256(s[0], s[1], 0x20),
                                       _mm256_permute2x128_si256(s[0], s[1], 0x31));
    const __m256i b = _mm256_add_epi32(_mm256_permute2x128_si256(s[2], s[3], 0x20),
                                       _mm256_permute2x128_si256(s[2], s[3], 0x31));
    quad[half] = _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
  }
  const __m256 a = _mm256_castsi256_ps(quad[0]), b = _mm256_castsi256_ps(quad[1]);
  rows[0] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
  rows[1] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
}

// 16-bit sums of up to kChunkTiles tiles -> rows 0, 2, 4, 6, 1, 3, 5, 7 of a half. Sums that still
// fit 16 bits after neighbours are added are packed to 16 bits, which halves the remaining
// additions.
template <int kBits, bool kHigh>
[[gnu::always_inline]] inline __m256i RowsOf(const __m256i (&sums)[4]) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i s[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    s[j] = _mm256_madd_epi16(sums[j], ones);
    if constexpr (kBits == 2 && kHigh) s[j] = _mm256_srai_epi32(s[j], 2);  // exact: AddPieces
  }
  if constexpr (kBits == 4) {
    return _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3]));
  } else {
    const __m256i a = _mm256_madd_epi16(_mm256_packs_epi32(s[0], s[1]), ones);
    const __m256i b = _mm256_madd_epi16(_mm256_packs_epi32(s[2], s[3]), ones);
    if constexpr (kBits == 3) return _mm256_hadd_epi32(a, b);
    return _mm256_madd_epi16(_mm256_packs_epi32(a, b), ones);
  }
}

// Puts rows in order.
[[gnu::always_inline]] inline void Order(__m256i (&rows)[2]) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  rows[0] = _mm256_permutevar8x32_epi32(rows[0], order);
  rows[1] = _mm256_permutevar8x32_epi32(rows[1], order);
}

// A flush's part of the weights' scales, for 16 rows.
struct RowScales {
  __m256 scale[2], offset[2];
  bool symmetric;
};

[[gnu::always_inline]] inline RowScales ScalesOf(const BlockGemmArgs& args, int b, int64_t at) {
  FetchScales(args, b, at);
  RowScales scales;
  scales.symmetric = args.offsets[b] == nullptr;
  for (int half = 0; half < 2; ++half) {
    scales.scale[half] = Widen(args.scales[b] + at + half * 8);
    scales.offset[half] =
        scales.symmetric ? scales.scale[half] : Widen(args.offsets[b] + at + half * 8);
  }
  return scales;
}

// Adds the dots of 16 rows over `count` tiles, whose activations' scales are `x_scales`.
template <int kBits>
[[gnu::always_inline]] inline void Flush(const __m256i (&rows)[2], const TileScale* x_scales,
                                         int64_t count, const RowScales& w, __m256 (&out)[2]) {
  int32_t sum = 0;
  for (int64_t tile = 0; tile < count; ++tile) sum += x_scales[tile].sum;
  const __m256 x_scale = _mm256_set1_ps(x_scales[0].scale);
  // Corrects the sums to codes around zero, or from them: 8-bit codes are summed as signed numbers.
  int32_t correction = 0;
  if (w.symmetric && kBits != 8) correction = -(sum << (kBits - 1));
  if (!w.symmetric && kBits == 8) correction = sum << 7;
  const __m256 negative = _mm256_cvtepi32_ps(_mm256_set1_epi32(-sum));
  for (int half = 0; half < 2; ++half) {
    const __m256i dot = _mm256_add_epi32(rows[half], _mm256_set1_epi32(correction));
    out[half] =
        _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(w.scale[half], x_scale), out[half]);
    if (!w.symmetric) {
      out[half] = _mm256_fmadd_ps(negative, _mm256_mul_ps(w.offset[half], x_scale), out[half]);
    }
  }
}

// One column: everything stays in registers from the codes to the scaled sums.
template <int kBits>
void GemmOne(const BlockGemmArgs& args) {
  const int64_t tiles = args.k16s / kTilePieces;
  const uint8_t* const x[1] = {args.x[0]};
  const auto* x_scales = reinterpret_cast<const TileScale*>(args.x[0] + tiles * kTileK);
  for (int b = 0; b < args.blocks; ++b) {
    __m256 out[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    const uint8_t* w = args.weights[b];
    for (int64_t begin = 0; begin < tiles; begin += args.flush_tiles) {
      const int64_t count = tiles - begin < args.flush_tiles ? tiles - begin : args.flush_tiles;
      __m256i rows[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
      for (int64_t tile = 0; tile < count; tile += kChunkTiles) {
        const int64_t end = count - tile < kChunkTiles ? count : tile + kChunkTiles;
        __m256i low[4][1], high[4][1];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) low[j][0] = high[j][0] = _mm256_setzero_si256();
        for (int64_t i = tile; i < end; ++i, w += kBits * 128) {
          FetchWeights(w, kBits * 128);
          AddTile<kBits, 4, 1>(w, x, (begin + i) * kTilePieces, low, high);
        }
        const __m256i lows[4] = {low[0][0], low[1][0], low[2][0], low[3][0]};
        const __m256i highs[4] = {high[0][0], high[1][0], high[2][0], high[3][0]};
        rows[0] = _mm256_add_epi32(rows[0], RowsOf<kBits, false>(lows));
        rows[1] = _mm256_add_epi32(rows[1], RowsOf<kBits, true>(highs));
      }
      Order(rows);
      Flush<kBits>(rows, x_scales + begin, count,
                   ScalesOf(args, b, begin / args.group_tiles * args.scale_stride), out);
    }
    StoreRows(args, b, 0, out[0], out[1]);
  }
}

template <int kBits>
void Gemm(const BlockGemmArgs& args) {
  if constexpr (kBits != 8) {
    if (args.columns == 1) return GemmOne<kBits>(args);
  }
  const int64_t tiles = args.k16s / kTilePieces;
  for (int b = 0; b < args.blocks; ++b) {
    __m256 out[kNarrowColumns][2];
    for (int c = 0; c < args.columns; ++c) out[c][0] = out[c][1] = _mm256_setzero_ps();
    for (int64_t begin = 0; begin < tiles; begin += args.flush_tiles) {
      const int64_t count = tiles - begin < args.flush_tiles ? tiles - begin : args.flush_tiles;
      const uint8_t* w = args.weights[b] + begin * kBits * 128;
      __m256i sums[kNarrowColumns][2][4];  // of 8-bit codes over the flush, else over a chunk
      __m256i rows[kNarrowColumns][2];
      for (int c = 0; c < args.columns; ++c) {
        rows[c][0] = rows[c][1] = _mm256_setzero_si256();
        for (int j = 0; j < 4 && kBits == 8; ++j) {
          sums[c][0][j] = sums[c][1][j] = _mm256_setzero_si256();
        }
      }
      for (int64_t tile = 0; tile < count; tile += kChunkTiles) {
        const int64_t chunk = count - tile < kChunkTiles ? count - tile : kChunkTiles;
        const uint8_t* from = w + tile * kBits * 128;
        FetchWeights(from, chunk * kBits * 128);
        for (int c = 0; c < args.columns; c += kColumnsAtOnce) {
          const int some = args.columns - c < kColumnsAtOnce ? args.columns - c : kColumnsAtOnce;
          Columns<kBits>(some, from, chunk, args.x + c, (begin + tile) * kTileK, sums + c);
        }
        for (int c = 0; c < args.columns && kBits != 8; ++c) {
          rows[c][0] = _mm256_add_epi32(rows[c][0], RowsOf<kBits, false>(sums[c][0]));
          rows[c][1] = _mm256_add_epi32(rows[c][1], RowsOf<kBits, true>(sums[c][1]));
        }
      }
      const RowScales scales = ScalesOf(args, b, begin / args.group_tiles * args.scale_stride);
      for (int c = 0; c < args.columns; ++c) {
        if constexpr (kBits == 8) RowsOfBytes(sums[c], rows[c]);
        Order(rows[c]);
        Flush<kBits>(rows[c],
                     reinterpret_cast<const TileScale*>(args.x[c] + tiles * kTileK) + begin, count,
                     scales, out[c]);
      }
    }
    for (int c = 0; c < args.columns; ++c) StoreRows(args, b, c, out[c][0], out[c][1]);
  }
}

}  // namespace

void BlockGemmIntW8Avx2(const BlockGemmArgs& args) { Gemm<8>(args); }
void BlockGemmIntW4Avx2(const BlockGemmArgs& args) { Gemm<4>(args); }
void BlockGemmIntW3Avx2(const BlockGemmArgs& args) { Gemm<3>(args); }
void BlockGemmIntW2Avx2(const BlockGemmArgs& args) { Gemm<2>(args); }

}  // namespace moert::kernels
#endif
