// e4m3 activations x e4m3 weights, AVX2, FMA and F16C. A code's bits become a binary16 number that
// is 2^-8 times as large, subnormal codes included, which is then converted to a float. Both steps
// are exact, as are the products of two codes. Rows of activations are fp32 values in the order of
// channels.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/block_gemm.h"
#include "kernels/cpu/quantized_avx2.h"

namespace moert::kernels {
namespace {

constexpr int64_t kOperand = 64;  // bytes of a piece of x
constexpr int64_t kTileBytes = 1024;

// The four channels from 4 i on of a piece, for rows j and j + 8.
[[gnu::always_inline]] inline __m256 Spread(const uint8_t* column, int64_t piece, int i) {
  return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(column + piece * kOperand + i * 16));
}

// sums[c][j] += rows j (lower half) and j + 8 for j in [j0, j0 + J), each spread over four lanes.
template <int J, int C>
void AddTiles(const uint8_t* w, int64_t tiles, const uint8_t* const* x, int64_t x_offset, int j0,
              __m256 (*sums)[8]) {
  // Words of rows j and j + 8 alternate; a 128-bit lane has two t of each. The shuffles select
  // channels 2t, 2t + 1 of both rows, and channels 2t + 8, 2t + 9.
  const __m256i first = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(-1, 0, -1, 2, -1, 8, -1, 10, -1, 4, -1, 6, -1, 12, -1, 14));
  const __m256i second = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(-1, 1, -1, 3, -1, 9, -1, 11, -1, 5, -1, 7, -1, 13, -1, 15));
  __m256 acc[J][C];
  const uint8_t* column[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    column[c] = x[c] + x_offset;
#pragma GCC unroll 8
    for (int j = 0; j < J; ++j) acc[j][c] = sums[c][j0 + j];
  }
  w += j0 * 32;
  for (int64_t piece = 0; piece < tiles * kTilePieces; ++piece, w += 256) {
#pragma GCC unroll 8
    for (int j = 0; j < J; ++j) {
      const __m256i words = Load(w + j * 32);
      const __m256i low = HalfOf(_mm256_shuffle_epi8(words, first));
      const __m256i high = HalfOf(_mm256_shuffle_epi8(words, second));
      const __m256 codes[4] = {_mm256_cvtph_ps(_mm256_castsi256_si128(low)),
                               _mm256_cvtph_ps(_mm256_extracti128_si256(low, 1)),
                               _mm256_cvtph_ps(_mm256_castsi256_si128(high)),
                               _mm256_cvtph_ps(_mm256_extracti128_si256(high, 1))};
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) {
          acc[j][c] = _mm256_fmadd_ps(codes[i], Spread(column[c], piece, i), acc[j][c]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
    for (int j = 0; j < J; ++j) sums[c][j0 + j] = acc[j][c];
  }
}

void Columns(int count, const uint8_t* w, int64_t tiles, const uint8_t* const* x, int64_t x_offset,
             __m256 (*sums)[8]) {
  ByColumns<8>(
      count, [&]<int J, int C>(int j) __attribute__((always_inline)) {
        AddTiles<J, C>(w, tiles, x, x_offset, j, sums);
      });
}

// Sums -> rows 0..7 and 8..15.
[[gnu::always_inline]] inline void Rows(const __m256 (&sums)[8], __m256 (&rows)[2]) {
  const __m256 a =
      _mm256_hadd_ps(_mm256_hadd_ps(sums[0], sums[1]), _mm256_hadd_ps(sums[2], sums[3]));
  const __m256 b =
      _mm256_hadd_ps(_mm256_hadd_ps(sums[4], sums[5]), _mm256_hadd_ps(sums[6], sums[7]));
  rows[0] = _mm256_permute2f128_ps(a, b, 0x20);
  rows[1] = _mm256_permute2f128_ps(a, b, 0x31);
}

}  // namespace

void BlockGemmF8Avx2(const BlockGemmArgs& args) {
  constexpr int64_t kChunk = 2;                // tiles that stay in L1 for all columns
  const __m256 undo = _mm256_set1_ps(256.0f);  // of the codes' 2^-8
  const int64_t tiles = args.k16s / kTilePieces;
  for (int b = 0; b < args.blocks; ++b) {
    __m256 out[kNarrowColumns][2];
    for (int c = 0; c < args.columns; ++c) out[c][0] = out[c][1] = _mm256_setzero_ps();
    for (int64_t begin = 0; begin < tiles; begin += args.flush_tiles) {
      const int64_t left = tiles - begin;
      const int64_t count = left < args.flush_tiles ? left : args.flush_tiles;
      __m256 sums[kNarrowColumns][8];
      for (int c = 0; c < args.columns; ++c) {
        for (int j = 0; j < 8; ++j) sums[c][j] = _mm256_setzero_ps();
      }
      for (int64_t tile = begin; tile < begin + count; tile += kChunk) {
        const int64_t chunk = begin + count - tile < kChunk ? begin + count - tile : kChunk;
        const uint8_t* w = args.weights[b] + tile * kTileBytes;
        FetchWeights(w, chunk * kTileBytes);
        for (int c = 0; c < args.columns; c += kColumnsAtOnce) {
          const int some = args.columns - c < kColumnsAtOnce ? args.columns - c : kColumnsAtOnce;
          Columns(some, w, chunk, args.x + c, tile * kTilePieces * kOperand, sums + c);
        }
      }
      const int64_t at = begin / args.group_tiles * args.scale_stride;
      FetchScales(args, b, at);
      for (int half = 0; half < 2; ++half) {
        const __m256 scale = _mm256_mul_ps(Widen(args.scales[b] + at + half * 8), undo);
        for (int c = 0; c < args.columns; ++c) {
          __m256 rows[2];
          Rows(sums[c], rows);
          out[c][half] = _mm256_fmadd_ps(rows[half], scale, out[c][half]);
        }
      }
    }
    for (int c = 0; c < args.columns; ++c) {
      const auto* scales =
          reinterpret_cast<const TileScale*>(args.x[c] + tiles * kTilePieces * kOperand);
      const __m256 x_scale = _mm256_set1_ps(scales[0].scale);
      StoreRows(args, b, c, _mm256_mul_ps(out[c][0], x_scale), _mm256_mul_ps(out[c][1], x_scale));
    }
  }
}

}  // namespace moert::kernels
#endif
