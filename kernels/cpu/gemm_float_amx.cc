// bf16 activations x quantized weights, AMX (tdpbf16ps). The words of codes are sorted by quads of
// input channels (as for integers, gemm_int_amx.cc). Table look-ups turn each into two bf16 pairs,
// shifted to lie around zero, which is exact. An 8-bit code is the sum of two such values, its
// nibbles, each with a tile of its own. Scales multiply the sums of a group, not weights. e4m3
// codes become the bf16 of their values, against activations on the e4m3 grid.
//
// Rows of a block are kept in the order that the shuffles give (RowAt) until the end.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/amx_tile.h"
#include "kernels/cpu/block_gemm.h"
#include "kernels/cpu/quantized_avx512.h"

namespace moert::kernels {
namespace {

constexpr int64_t kXTileBytes = 128;  // of a row of x: 64 channels in order

// Field kField of each byte of `word` in its low bits, of 3-bit codes with bit kPlaneBit of `plane`
// as the third bit; the table ignores all higher bits.
template <int kBits, int kField, int kPlaneBit>
[[gnu::always_inline]] inline __m512i Field(__m512i word, __m512i plane) {
  const __m512i low = kField == 0 ? word : _mm512_srli_epi16(word, kField * (kBits == 4 ? 4 : 2));
  if constexpr (kBits != 3) return low;
  const __m512i bit = kPlaneBit >= 2 ? _mm512_srli_epi16(plane, kPlaneBit >= 2 ? kPlaneBit - 2 : 0)
                                     : _mm512_slli_epi16(plane, kPlaneBit >= 2 ? 0 : 2 - kPlaneBit);
  // (low & 3) | (bit & 4)
  return _mm512_ternarylogic_epi32(low, _mm512_set1_epi8(3),
                                   _mm512_and_si512(bit, _mm512_set1_epi8(4)), 0xea);
}

// Quad t of all rows -> pairs t (channels 2t, 2t + 1) and t + 4 (2t + 8, 2t + 9).
[[gnu::always_inline]] inline void StorePairs(__m512i quad, __m512i table, uint8_t* to) {
  Store(to, _mm512_permutexvar_epi16(quad, table));
  Store(to + 256, _mm512_permutexvar_epi16(_mm512_srli_epi16(quad, 8), table));
}

// Quads t and t + 1 of rows 0..7 in `low` and of rows 8..15 in `high`.
[[gnu::always_inline]] inline void StoreQuads(__m512i low, __m512i high, __m512i table,
                                              uint8_t* to) {
  StorePairs(_mm512_unpacklo_epi64(low, high), table, to);
  StorePairs(_mm512_unpackhi_epi64(low, high), table, to + 64);
}

// Piece kPiece of a tile, whose words are `first` (quads 0 and 1) and `second` (2 and 3).
template <int kBits, int kPiece>
[[gnu::always_inline]] inline void StorePiece(__m512i first, __m512i second, __m512i plane_first,
                                              __m512i plane_second, __m512i table, uint8_t* to) {
  constexpr int kField = kBits == 4 ? 0 : kPiece % 2 * 2;
  constexpr int kBit = kPiece * 2;
  to += kPiece * 512;
  StoreQuads(Field<kBits, kField, kBit>(first, plane_first),
             Field<kBits, kField + 1, kBit + 1>(first, plane_first), table, to);
  StoreQuads(Field<kBits, kField, kBit>(second, plane_second),
             Field<kBits, kField + 1, kBit + 1>(second, plane_second), table, to + 128);
}

// A tile of weights has two tiles of [16 pairs][16 rows][2]; with 8 bits two of low and two of high
// nibbles.
template <int kBits, bool kF8>
constexpr int kTilesOf = kBits == 8 && !kF8 ? 4 : 2;

template <int kBits, bool kF8>
[[gnu::always_inline]] inline void Convert(const CodeTables& tables, const uint8_t* w,
                                           uint8_t* to) {
  FetchWeights<kBits>(w);
  if constexpr (kBits == 8) {
#pragma GCC unroll 4
    for (int i = 0; i < kTilePieces; ++i) {
      // Words of rows g and g + 8 alternate; a load holds two g, a 128-bit lane two quads.
      const __m512i q0 = Load(w + i * 256), q1 = Load(w + i * 256 + 64);
      const __m512i q2 = Load(w + i * 256 + 128), q3 = Load(w + i * 256 + 192);
      const __m512i even01 = _mm512_unpacklo_epi64(q0, q1), odd01 = _mm512_unpackhi_epi64(q0, q1);
      const __m512i even23 = _mm512_unpacklo_epi64(q2, q3), odd23 = _mm512_unpackhi_epi64(q2, q3);
      const __m512i quads[4] = {
          _mm512_shuffle_i32x4(even01, even23, 0x88), _mm512_shuffle_i32x4(odd01, odd23, 0x88),
          _mm512_shuffle_i32x4(even01, even23, 0xdd), _mm512_shuffle_i32x4(odd01, odd23, 0xdd)};
#pragma GCC unroll 4
      for (int t = 0; t < 4; ++t) {
        // The table is indexed by 5 bits; for a low nibble it ignores the fifth.
        uint8_t* const pairs = to + i * 512 + t * 64;
        if constexpr (kF8) {
          Store(pairs, ExpandF8<false>(quads[t], tables.low));
          Store(pairs + 256, ExpandF8<true>(quads[t], tables.low));
          continue;
        }
        StorePairs(quads[t], tables.low, pairs);
        StorePairs(_mm512_srli_epi16(quads[t], 4), tables.high, pairs + 2 * kAmxBytes);
      }
    }
  } else {
    ByQuads<kBits>(
        w, [&]<int kPiece>(__m512i first, __m512i second, __m512i plane_first,
                           __m512i plane_second) __attribute__((always_inline)) {
          StorePiece<kBits, kPiece>(first, second, plane_first, plane_second, tables.low, to);
        });
  }
}

// Finds a factor of every column: the scale of its codes, or the sum of x over `count` tiles from
// `begin` on.
template <bool kF8>
void ColumnFactors(const BlockGemmArgs& args, int64_t tiles, int64_t begin, int64_t count,
                   float* factors) {
  for (int c = 0; c < args.columns; ++c) {
    const uint8_t* const behind = args.x[c] + tiles * kXTileBytes;
    if constexpr (kF8) {
      factors[c] = reinterpret_cast<const TileScale*>(behind)[0].scale;
    } else {
      const auto* tile_sums = reinterpret_cast<const float*>(behind) + begin;
      float sum = 0;
      for (int64_t tile = 0; tile < count; ++tile) sum += tile_sums[tile];
      factors[c] = sum;
    }
  }
}

// Adds the sums of a block's columns, scaled, to those in `to`, or to zero. offset: null, or what
// is subtracted for each unit of the sum of x.
template <bool kF8, bool kFirst>
void AddColumns(const float* sums, int columns, __m512 scale, const __m512* offset,
                const float* factors, float* to) {
  for (int c = 0; c < columns; ++c, sums += kBlockRows, to += kBlockRows) {
    __m512 sum = kFirst ? _mm512_setzero_ps() : _mm512_load_ps(to);
    const __m512 by = kF8 ? _mm512_mul_ps(scale, _mm512_set1_ps(factors[c])) : scale;
    sum = _mm512_fmadd_ps(_mm512_load_ps(sums), by, sum);
    if (offset != nullptr) sum = _mm512_fnmadd_ps(*offset, _mm512_set1_ps(factors[c]), sum);
    _mm512_store_ps(to, sum);
  }
}

// Adds the sums of `count` tiles from `begin` on, scaled, to those in args.out.
template <int kBits, bool kF8>
void Flush(const BlockGemmArgs& args, int64_t tiles, int64_t begin, int64_t count,
           const float* sums) {
  const __m512i order = RowAt<kBits>();
  const int64_t at = begin / args.group_tiles * args.scale_stride;
  float factors[kMaxColumns];
  if (kF8 || args.offsets[0] != nullptr) ColumnFactors<kF8>(args, tiles, begin, count, factors);
  for (int b = 0; b < args.blocks; ++b) {
    FetchScales(args, b, at);
    const __m512 scale = _mm512_permutexvar_ps(order, Widen(args.scales[b] + at));
    const bool symmetric = kF8 || args.offsets[b] == nullptr;
    __m512 offset = _mm512_setzero_ps();
    if (!symmetric) {
      // w = scale u - offset = scale (u - middle) - (offset - middle scale)
      offset = _mm512_fnmadd_ps(_mm512_set1_ps(1 << (kBits - 1)), scale,
                                _mm512_permutexvar_ps(order, Widen(args.offsets[b] + at)));
    }
    const int64_t row = b * kMaxColumns * kBlockRows;
    (begin == 0 ? AddColumns<kF8, true> : AddColumns<kF8, false>)(
        sums + row, args.columns, scale, symmetric ? nullptr : &offset, factors, args.out + row);
  }
}

template <int kBits, bool kF8 = false>
void Gemm(const BlockGemmArgs& args) {
  constexpr int64_t kTileBytes = kBits * 128;
  CodeTables tables = MakeCodeTables<kBits>();
  if constexpr (kF8) tables.low = MakeF8Table();
  const int64_t tiles = args.k16s / kTilePieces;
  const int64_t stride = args.columns > 1 ? args.x[1] - args.x[0] : 0;
  const bool halves = args.columns > kAmxRows;
  const bool blocks = args.blocks > 1;
  alignas(64) uint8_t staged[2][kMaxBlocks][kTilesOf<kBits, kF8> * kAmxBytes];
  alignas(64) float sums[kMaxBlocks * kMaxColumns * kBlockRows];
  AmxBegin(args.columns);
  const auto convert = [&](int64_t tile) __attribute__((always_inline)) {
    Convert<kBits, kF8>(tables, args.weights[0] + tile * kTileBytes, staged[tile % 2][0]);
    if (blocks) {
      Convert<kBits, kF8>(tables, args.weights[1] + tile * kTileBytes, staged[tile % 2][1]);
    }
  };
  convert(0);
  int64_t begin = 0;    // of the flush under way
  int64_t pending = 0;  // tiles before `begin` whose sums are stored but not added yet: a tile
                        // later they can be read without waiting
  for (int64_t tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) convert(tile + 1);
#pragma GCC unroll 4
    for (int i = 0; i < kTilesOf<kBits, kF8>; ++i) {
      AmxStep<AmxDot::kBf16>(args.x[0] + tile * kXTileBytes + i % 2 * 64, stride, halves,
                             staged[tile % 2][0] + i * kAmxBytes,
                             staged[tile % 2][1] + i * kAmxBytes, blocks);
    }
    if (pending > 0) {
      Flush<kBits, kF8>(args, tiles, begin - pending, pending, sums);
      pending = 0;
    }
    if (tile + 1 - begin == args.flush_tiles || tile + 1 == tiles) {
      AmxStoreSums(halves, blocks, sums);
      AmxZeroSums(halves, blocks);
      pending = tile + 1 - begin;
      begin = tile + 1;
    }
  }
  AmxEnd();
  Flush<kBits, kF8>(args, tiles, begin - pending, pending, sums);
  AmxRestoreRows<kBits>(args);
}

}  // namespace

void BlockGemmFloatW8Amx(const BlockGemmArgs& args) { Gemm<8>(args); }
void BlockGemmFloatW4Amx(const BlockGemmArgs& args) { Gemm<4>(args); }
void BlockGemmFloatW3Amx(const BlockGemmArgs& args) { Gemm<3>(args); }
void BlockGemmFloatW2Amx(const BlockGemmArgs& args) { Gemm<2>(args); }
void BlockGemmF8Amx(const BlockGemmArgs& args) { Gemm<8, true>(args); }

}  // namespace moert::kernels
#endif
