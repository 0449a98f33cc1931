// bf16 activations x quantized weights, AVX512-BF16 (vdpbf16ps). Codes become bf16 pairs by table
// look-ups (vpermw), shifted to lie around zero, which is exact: integers below 256 fit bf16. An
// 8-bit code is the sum of two such values, its nibbles. Scales multiply the sums of a group, not
// weights. e4m3 codes become the bf16 of their values, against activations on the e4m3 grid.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/block_gemm.h"
#include "kernels/cpu/pairs_avx512bf16.h"
#include "kernels/cpu/quantized_avx512.h"

namespace moert::kernels {
namespace {

// Helpers are inlined by force: accumulators passed by reference would otherwise live in memory.

constexpr int kColumnsAtOnce = 4;  // whose accumulators fit the registers

// The table index of field kField of each byte. For fields 0 and 1 `word` has the word itself, for
// fields 2 and 3 the upper halves of its bytes, shifted down. Odd fields stay two bits up. Codes of
// 3 bits have bit kPlaneBit of `plane` as the third bit. The tables ignore all other bits.
template <int kBits, int kField, int kPlaneBit>
[[gnu::always_inline]] inline __m512i Field(__m512i word, __m512i plane) {
  if constexpr (kBits == 2) return word;
  constexpr int kUp = kField % 2 * 2;
  constexpr int kShift = kPlaneBit - 2 - kUp;
  const __m512i bit = kShift >= 0 ? _mm512_srli_epi16(plane, kShift >= 0 ? kShift : 0)
                                  : _mm512_slli_epi16(plane, kShift >= 0 ? 0 : -kShift);
  // bit 2 + kUp of `bit`, the others of `word`
  return _mm512_ternarylogic_epi32(_mm512_set1_epi8(4 << kUp), bit, word, 0xca);
}

template <int kBits, int kWords, int C>
[[gnu::always_inline]] inline void AddPieces(__m512 (&acc)[kQuarters][C], const uint8_t* w,
                                             __m512i plane_a, __m512i plane_b,
                                             const CodeTables& tables,
                                             const uint8_t* const (&column)[C], int64_t p) {
  constexpr int kFirst = kWords * 4;  // bit of the third-bit plane
  __m512i a = Load(w), b = Load(w + 64);
  Operand<C> x = Spread<C, false>(column, p);
  AddCodes<C>(acc[0], Field<kBits, 0, kFirst>(a, plane_a), tables.low, x);
  AddCodes<C>(acc[1], Field<kBits, 0, kFirst>(b, plane_b), tables.low, x);
  AddCodes<C>(acc[2], Field<kBits, 1, kFirst + 1>(a, plane_a), tables.high, x);
  AddCodes<C>(acc[3], Field<kBits, 1, kFirst + 1>(b, plane_b), tables.high, x);
  x = Spread<C, false>(column, p + 1);
  a = _mm512_srli_epi16(a, 4);
  b = _mm512_srli_epi16(b, 4);
  AddCodes<C>(acc[0], Field<kBits, 2, kFirst + 2>(a, plane_a), tables.low, x);
  AddCodes<C>(acc[1], Field<kBits, 2, kFirst + 2>(b, plane_b), tables.low, x);
  AddCodes<C>(acc[2], Field<kBits, 3, kFirst + 3>(a, plane_a), tables.high, x);
  AddCodes<C>(acc[3], Field<kBits, 3, kFirst + 3>(b, plane_b), tables.high, x);
}

// sums[c] = over `tiles` tiles of (code - middle) x activation, for 16 rows and C columns.
template <int kBits, bool kF8, int C, bool kFetch>
void Sums(const CodeTables& tables, const uint8_t* w, int64_t tiles, const uint8_t* const* x,
          int64_t x_offset, __m512* sums) {
  constexpr int64_t kTileBytes = kBits * 128;
  __m512 acc[kQuarters][C];
  const uint8_t* column[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    column[c] = x[c] + x_offset;
#pragma GCC unroll 4
    for (int q = 0; q < kQuarters; ++q) acc[q][c] = _mm512_setzero_ps();
  }
  for (int64_t tile = 0; tile < tiles; ++tile, w += kTileBytes) {
    if constexpr (kFetch) FetchWeights<kBits>(w);
    const int64_t p = tile * kTilePieces;
    if constexpr (kBits == 8) {
#pragma GCC unroll 4
      for (int i = 0; i < kTilePieces; ++i) {
        const Operand<C> operand = Spread<C, true>(column, p + i);
#pragma GCC unroll 4
        for (int q = 0; q < kQuarters; ++q) {
          const __m512i codes = Load(w + i * 256 + q * 64);
          if constexpr (kF8) {
            Add<C>(acc[q], ExpandF8<false>(codes, tables.low), operand.low);
            Add<C>(acc[q], ExpandF8<true>(codes, tables.low), operand.high);
          } else {
            AddCodes<C>(acc[q], codes, tables.low, operand);
            AddCodes<C>(acc[q], _mm512_srli_epi16(codes, 4), tables.high, operand);
          }
        }
      }
    } else if constexpr (kBits == 4) {
#pragma GCC unroll 4
      for (int i = 0; i < kTilePieces; ++i) {
        const Operand<C> operand = Spread<C, false>(column, p + i);
        const __m512i a = Load(w + i * 128), b = Load(w + i * 128 + 64);
        AddCodes<C>(acc[0], a, tables.low, operand);
        AddCodes<C>(acc[1], b, tables.low, operand);
        AddCodes<C>(acc[2], _mm512_srli_epi16(a, 4), tables.low, operand);
        AddCodes<C>(acc[3], _mm512_srli_epi16(b, 4), tables.low, operand);
      }
    } else {
      __m512i plane_a = _mm512_setzero_si512(), plane_b = plane_a;
      if constexpr (kBits == 3) {
        plane_a = Load(w + 256);
        plane_b = Load(w + 320);
      }
      AddPieces<kBits, 0, C>(acc, w, plane_a, plane_b, tables, column, p);
      AddPieces<kBits, 1, C>(acc, w + 128, plane_a, plane_b, tables, column, p + 2);
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    sums[c] = kBits == 8 ? Rows8(acc[0][c], acc[1][c], acc[2][c], acc[3][c])
                         : Rows(acc[0][c], acc[1][c], acc[2][c], acc[3][c]);
  }
}

template <int kBits, bool kF8, bool kFetch>
void SumsOf(int columns, const CodeTables& tables, const uint8_t* w, int64_t tiles,
            const uint8_t* const* x, int64_t x_offset, __m512* sums) {
  switch (columns) {
    case 1:
      return Sums<kBits, kF8, 1, kFetch>(tables, w, tiles, x, x_offset, sums);
    case 2:
      return Sums<kBits, kF8, 2, kFetch>(tables, w, tiles, x, x_offset, sums);
    case 3:
      return Sums<kBits, kF8, 3, kFetch>(tables, w, tiles, x, x_offset, sums);
    default:
      return Sums<kBits, kF8, 4, kFetch>(tables, w, tiles, x, x_offset, sums);
  }
}

template <int kBits, bool kF8 = false>
void Gemm(const BlockGemmArgs& args) {
  CodeTables tables = MakeCodeTables<kBits>();
  if constexpr (kF8) tables.low = MakeF8Table();
  const int64_t tiles = args.k16s / kTilePieces;
  const __m512 middle = _mm512_set1_ps(1 << (kBits - 1));
  for (int b = 0; b < args.blocks; ++b) {
    __m512 out[kNarrowColumns];
    for (int c = 0; c < args.columns; ++c) out[c] = _mm512_setzero_ps();
    for (int64_t begin = 0; begin < tiles; begin += args.flush_tiles) {
      const int64_t left = tiles - begin;
      const int64_t count = left < args.flush_tiles ? left : args.flush_tiles;
      const uint8_t* w = args.weights[b] + begin * kBits * 128;
      const int64_t x_offset = begin * kTilePieces * kOperand;
      __m512 sums[kNarrowColumns];
      const int first = args.columns < kColumnsAtOnce ? args.columns : kColumnsAtOnce;
      SumsOf<kBits, kF8, true>(first, tables, w, count, args.x, x_offset, sums);
      if (args.columns > first) {
        SumsOf<kBits, kF8, false>(args.columns - first, tables, w, count, args.x + first, x_offset,
                                  sums + first);
      }
      const int64_t at = begin / args.group_tiles * args.scale_stride;
      FetchScales(args, b, at);
      const __m512 scale = Widen(args.scales[b] + at);
      for (int c = 0; c < args.columns; ++c) out[c] = _mm512_fmadd_ps(sums[c], scale, out[c]);
      if (kF8 || args.offsets[b] == nullptr) continue;
      // w = scale u - offset = scale (u - middle) - (offset - middle scale)
      const __m512 offset = _mm512_fnmadd_ps(middle, scale, Widen(args.offsets[b] + at));
      for (int c = 0; c < args.columns; ++c) {
        const auto* tile_sums =
            reinterpret_cast<const float*>(args.x[c] + tiles * kTilePieces * kOperand) + begin;
        float sum = 0;
        for (int64_t tile = 0; tile < count; ++tile) sum += tile_sums[tile];
        out[c] = _mm512_fnmadd_ps(offset, _mm512_set1_ps(sum), out[c]);
      }
    }
    for (int c = 0; c < args.columns; ++c) {
      if constexpr (kF8) {
        const auto* scales =
            reinterpret_cast<const TileScale*>(args.x[c] + tiles * kTilePieces * kOperand);
        out[c] = _mm512_mul_ps(out[c], _mm512_set1_ps(scales[0].scale));
      }
      _mm512_store_ps(args.out + (b * kMaxColumns + c) * kBlockRows, out[c]);
    }
  }
}

}  // namespace

void BlockGemmFloatW8Avx512Bf16(const BlockGemmArgs& args) { Gemm<8>(args); }
void BlockGemmFloatW4Avx512Bf16(const BlockGemmArgs& args) { Gemm<4>(args); }
void BlockGemmFloatW3Avx512Bf16(const BlockGemmArgs& args) { Gemm<3>(args); }
void BlockGemmFloatW2Avx512Bf16(const BlockGemmArgs& args) { Gemm<2>(args); }
void BlockGemmF8Avx512Bf16(const BlockGemmArgs& args) { Gemm<8, true>(args); }

// The bf16 operand of the bf16 kernel, then float sums[tiles].
void PackSummedBf16Avx512(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  PackBf16Avx512(x, valid, k16s, out);
  auto* sums = reinterpret_cast<float*>(out + k16s * kOperand);
  for (int64_t tile = 0; tile < k16s / kTilePieces; ++tile) {
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < kTilePieces; ++i) {
      const auto* piece =
          reinterpret_cast<const __m256i*>(out + (tile * kTilePieces + i) * kOperand);
      sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_slli_epi32(
                                   _mm512_cvtepu16_epi32(_mm256_load_si256(piece)), 16)));
    }
    sums[tile] = _mm512_reduce_add_ps(sum);
  }
}

}  // namespace moert::kernels
#endif
