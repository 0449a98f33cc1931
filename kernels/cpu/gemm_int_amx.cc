// Integer activations x quantized weights for many columns, AMX (tdpbssd, tdpbsud) and GFNI. The
// codes of a tile become [quad of input channels][row][4] bytes by shuffles of words, a tile ahead
// of their use, since stores are not forwarded to tile loads. Symmetric codes become signed at that
// point, which makes the sums of activations unnecessary. Sums are exact, so the result equals
// every other set's.
//
// Rows of a block are kept in the order that the shuffles give (RowAt) until the end.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/amx_tile.h"
#include "kernels/cpu/block_gemm.h"
#include "kernels/cpu/quantized_avx512.h"

namespace moert::kernels {
namespace {

// A bit matrix for gf2p8affine: `low` consecutive bits of a byte from bit `from` on become the bits
// from `to` on, and where `extend` is set the last of them all bits above as well.
constexpr int64_t Bits(int from, int low, int to, bool extend) {
  uint64_t matrix = 0;
  for (int i = to; i < 8; ++i) {
    const int bit = i - to < low ? i - to : low - 1;
    if (i - to < low || extend) matrix |= uint64_t{1} << (from + bit + 8 * (7 - i));
  }
  return static_cast<int64_t>(matrix);
}

// Field kField of each byte of `word` as it enters the product: a 4-bit code, or a 2-bit one with
// bit kPlaneBit of `plane` as the third bit. For symmetric schemes the middle is subtracted: u -
// 2^(bits - 1) has the low bits of u and, above them, the complement of its highest bit.
template <int kBits, bool kSymmetric, int kField, int kPlaneBit>
[[gnu::always_inline]] inline __m512i Field(__m512i word, __m512i plane) {
  constexpr int kFlip = kSymmetric ? 0xff << (kBits - 1) & 0xff : 0;
  if constexpr (kBits == 3) {
    const __m512i low =
        _mm512_gf2p8affine_epi64_epi8(word, _mm512_set1_epi64(Bits(kField * 2, 2, 0, false)), 0);
    const __m512i high = _mm512_gf2p8affine_epi64_epi8(
        plane, _mm512_set1_epi64(Bits(kPlaneBit, 1, 2, kSymmetric)), kFlip);
    return _mm512_or_si512(low, high);
  } else {
    return _mm512_gf2p8affine_epi64_epi8(
        word, _mm512_set1_epi64(Bits(kField * kBits, kBits, 0, kSymmetric)), kFlip);
  }
}

// 8-bit codes as they enter the product.
template <bool kSymmetric>
[[gnu::always_inline]] inline __m512i Centered(__m512i codes) {
  if constexpr (!kSymmetric) return codes;
  return _mm512_xor_si512(codes, _mm512_set1_epi8(static_cast<char>(0x80)));
}

// Quads t and t + 1 of rows 0..7 in `low` and of rows 8..15 in `high`, as two rows of a tile.
[[gnu::always_inline]] inline void StoreQuads(__m512i low, __m512i high, uint8_t* to) {
  Store(to, _mm512_unpacklo_epi64(low, high));
  Store(to + 64, _mm512_unpackhi_epi64(low, high));
}

// Piece kPiece of a tile, whose words are `first` (quads 0 and 1) and `second` (2 and 3).
template <int kBits, bool kSymmetric, int kPiece>
[[gnu::always_inline]] inline void StorePiece(__m512i first, __m512i second, __m512i plane_first,
                                              __m512i plane_second, uint8_t* to) {
  constexpr int kField = kBits == 4 ? 0 : kPiece % 2 * 2;
  constexpr int kBit = kPiece * 2;
  to += kPiece * 256;
  StoreQuads(Field<kBits, kSymmetric, kField, kBit>(first, plane_first),
             Field<kBits, kSymmetric, kField + 1, kBit + 1>(first, plane_first), to);
  StoreQuads(Field<kBits, kSymmetric, kField, kBit>(second, plane_second),
             Field<kBits, kSymmetric, kField + 1, kBit + 1>(second, plane_second), to + 128);
}

// One tile of weights -> [16 quads][16 rows][4].
template <int kBits, bool kSymmetric>
[[gnu::always_inline]] inline void Convert(const uint8_t* w, uint8_t* to) {
  FetchWeights<kBits>(w);
  if constexpr (kBits == 8) {
#pragma GCC unroll 4
    for (int i = 0; i < kTilePieces; ++i) {
      // Words of rows g and g + 8 alternate; a load holds two g, a 128-bit lane two quads.
      const __m512i q0 = Centered<kSymmetric>(Load(w + i * 256));
      const __m512i q1 = Centered<kSymmetric>(Load(w + i * 256 + 64));
      const __m512i q2 = Centered<kSymmetric>(Load(w + i * 256 + 128));
      const __m512i q3 = Centered<kSymmetric>(Load(w + i * 256 + 192));
      const __m512i even01 = _mm512_unpacklo_epi64(q0, q1), odd01 = _mm512_unpackhi_epi64(q0, q1);
      const __m512i even23 = _mm512_unpacklo_epi64(q2, q3), odd23 = _mm512_unpackhi_epi64(q2, q3);
      uint8_t* const quads = to + i * 256;
      Store(quads, _mm512_shuffle_i32x4(even01, even23, 0x88));
      Store(quads + 64, _mm512_shuffle_i32x4(odd01, odd23, 0x88));
      Store(quads + 128, _mm512_shuffle_i32x4(even01, even23, 0xdd));
      Store(quads + 192, _mm512_shuffle_i32x4(odd01, odd23, 0xdd));
    }
  } else {
    ByQuads<kBits>(
        w, [&]<int kPiece>(__m512i first, __m512i second, __m512i plane_first,
                           __m512i plane_second) __attribute__((always_inline)) {
          StorePiece<kBits, kSymmetric, kPiece>(first, second, plane_first, plane_second, to);
        });
  }
}

// Adds the dots of `count` tiles from `begin` on to the sums in args.out.
template <int kBits, bool kSymmetric>
void Flush(const BlockGemmArgs& args, int64_t tiles, int64_t begin, int64_t count,
           const int32_t* dots) {
  const __m512i order = RowAt<kBits>();
  const int64_t at = begin / args.group_tiles * args.scale_stride;
  for (int b = 0; b < args.blocks; ++b) {
    FetchScales(args, b, at);
    const __m512 scale = _mm512_permutexvar_ps(order, Widen(args.scales[b] + at));
    __m512 offset = scale;
    if constexpr (!kSymmetric) offset = _mm512_permutexvar_ps(order, Widen(args.offsets[b] + at));
    for (int c = 0; c < args.columns; ++c) {
      const auto* scales = reinterpret_cast<const TileScale*>(args.x[c] + tiles * kTileK) + begin;
      const int64_t row = (b * kMaxColumns + c) * kBlockRows;
      const __m512 x_scale = _mm512_set1_ps(scales[0].scale);
      __m512 sum = begin == 0 ? _mm512_setzero_ps() : _mm512_load_ps(args.out + row);
      sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(dots + row)),
                            _mm512_mul_ps(scale, x_scale), sum);
      if constexpr (!kSymmetric) {
        int32_t x_sum = 0;
        for (int64_t tile = 0; tile < count; ++tile) x_sum += scales[tile].sum;
        sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_set1_epi32(-x_sum)),
                              _mm512_mul_ps(offset, x_scale), sum);
      }
      _mm512_store_ps(args.out + row, sum);
    }
  }
}

template <int kBits, bool kSymmetric>
void Gemm(const BlockGemmArgs& args) {
  constexpr AmxDot kDot = kSymmetric ? AmxDot::kSigned : AmxDot::kUnsignedWeights;
  constexpr int64_t kTileBytes = kBits * 128;
  const int64_t tiles = args.k16s / kTilePieces;
  const int64_t stride = args.columns > 1 ? args.x[1] - args.x[0] : 0;
  const bool halves = args.columns > kAmxRows;
  const bool blocks = args.blocks > 1;
  alignas(64) uint8_t ring[kMaxBlocks * 2 * kAmxBytes];
  const AmxTiles staged = AmxTilesOf(args, ring, kAmxBytes);
  alignas(64) int32_t dots[kMaxBlocks * kMaxColumns * kBlockRows];
  AmxBegin(args.columns);
  const auto convert = [&](int64_t tile) __attribute__((always_inline)) {
    Convert<kBits, kSymmetric>(args.weights[0] + tile * kTileBytes, TileAt(staged, tile, 0));
    if (blocks) {
      Convert<kBits, kSymmetric>(args.weights[1] + tile * kTileBytes, TileAt(staged, tile, 1));
    }
  };
  const int64_t converted = args.tiles_kept ? 0 : tiles;
  if (converted > 0) convert(0);
  int64_t begin = 0;    // of the flush under way
  int64_t pending = 0;  // tiles before `begin` whose dots are stored but not added yet: a tile
                        // later they can be read without waiting
  for (int64_t tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < converted) convert(tile + 1);
    AmxStep<kDot>(args.x[0] + tile * kTileK, stride, halves, TileAt(staged, tile, 0),
                  TileAt(staged, tile, 1), blocks);
    if (pending > 0) {
      Flush<kBits, kSymmetric>(args, tiles, begin - pending, pending, dots);
      pending = 0;
    }
    if (tile + 1 - begin == args.flush_tiles || tile + 1 == tiles) {
      AmxStoreSums(halves, blocks, dots);
      AmxZeroSums(halves, blocks);
      pending = tile + 1 - begin;
      begin = tile + 1;
    }
  }
  AmxEnd();
  Flush<kBits, kSymmetric>(args, tiles, begin - pending, pending, dots);
  AmxRestoreRows<kBits>(args);
}

template <int kBits>
void Gemm(const BlockGemmArgs& args) {
  return args.offsets[0] == nullptr ? Gemm<kBits, true>(args) : Gemm<kBits, false>(args);
}

}  // namespace

void BlockGemmIntW8Amx(const BlockGemmArgs& args) { Gemm<8>(args); }
void BlockGemmIntW4Amx(const BlockGemmArgs& args) { Gemm<4>(args); }
void BlockGemmIntW3Amx(const BlockGemmArgs& args) { Gemm<3>(args); }
void BlockGemmIntW2Amx(const BlockGemmArgs& args) { Gemm<2>(args); }

}  // namespace moert::kernels
#endif
