// bf16 weights x bf16 activations, AVX512-BF16. One 64-byte load of a piece holds rows g and g + 8
// for all 16 channels. The operand is kept short, 32 bytes a piece, since its reads compete with
// those of the weights, and is spread over the lanes in registers: once for the 8 loads of a piece.
// An output row is the sum of 8 of an accumulator's 16 lanes.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/block_gemm.h"

namespace moert::kernels {
namespace {

constexpr int kGroups = 8;        // accumulators of a row block: rows g and g + 8
constexpr int64_t kOperand = 32;  // bytes of an operand piece: 8 channel pairs in order
constexpr int64_t kChunk = 16;    // pieces (8 KiB) that stay in L1 until all columns have used them

// Columns [0, C) x groups [g0, g0 + G) over `k16s` pieces; `resume` continues earlier sums.
// Meanwhile fetches kLines cache lines a piece from `ahead`: weights of the next chunk.
template <int G, int C, int kLines>
void Tile(const uint8_t* weights, int64_t k16s, const uint8_t* const* x, int64_t x_offset,
          bool resume, int g0, __m512 (*sums)[kGroups], const uint8_t* ahead) {
  // Lane t * 4 + r: pair t for rows g and g + 8, then pair t + 4 for both.
  const __m512i repeat = _mm512_setr_epi32(0, 0, 4, 4, 1, 1, 5, 5, 2, 2, 6, 6, 3, 3, 7, 7);
  __m512 acc[G][C];
  const uint8_t* column[C];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    column[c] = x[c] + x_offset;
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) acc[g][c] = resume ? sums[c][g0 + g] : _mm512_setzero_ps();
  }
  const uint8_t* w = weights + g0 * 64;
  for (int64_t i = 0; i < k16s; ++i) {
#pragma GCC unroll 8
    for (int line = 0; line < kLines; ++line) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead + (i * kLines + line) * 64), _MM_HINT_T0);
    }
    __m512bh operand[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const auto* pairs = reinterpret_cast<const __m256i*>(column[c] + i * kOperand);
      operand[c] = (__m512bh)_mm512_permutexvar_epi32(
          repeat, _mm512_castsi256_si512(_mm256_load_si256(pairs)));
    }
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      const auto pairs = (__m512bh)_mm512_load_si512(w + i * kBf16PieceBytes + g * 64);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) acc[g][c] = _mm512_dpbf16_ps(acc[g][c], pairs, operand[c]);
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) sums[c][g0 + g] = acc[g][c];
  }
}

// All groups of up to 4 columns, fetching kLines lines a piece of the weights from `ahead`.
template <int kLines>
void Columns(int count, const uint8_t* weights, int64_t k16s, const uint8_t* const* x,
             int64_t x_offset, bool resume, __m512 (*sums)[kGroups], const uint8_t* ahead) {
  switch (count) {
    case 1:
      Tile<8, 1, kLines>(weights, k16s, x, x_offset, resume, 0, sums, ahead);
      break;
    case 2:
      Tile<8, 2, kLines>(weights, k16s, x, x_offset, resume, 0, sums, ahead);
      break;
    case 3:
      Tile<8, 3, kLines>(weights, k16s, x, x_offset, resume, 0, sums, ahead);
      break;
    default:
      Tile<4, 4, kLines / 2>(weights, k16s, x, x_offset, resume, 0, sums, ahead);
      Tile<4, 4, kLines / 2>(weights, k16s, x, x_offset, resume, 4, sums,
                             ahead + k16s * kLines / 2 * 64);
      break;
  }
}

// Lane t * 4 + r of four accumulators -> for each, sum over t of {r0 + r2, r1 + r3, ...}.
__m512 ReduceFour(const __m512* a) {
  const __m512 ab =
      _mm512_add_ps(_mm512_shuffle_f32x4(a[0], a[1], 0x44), _mm512_shuffle_f32x4(a[0], a[1], 0xee));
  const __m512 cd =
      _mm512_add_ps(_mm512_shuffle_f32x4(a[2], a[3], 0x44), _mm512_shuffle_f32x4(a[2], a[3], 0xee));
  const __m512 abcd =
      _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  return _mm512_add_ps(abcd, _mm512_permute_ps(abcd, 0x4e));
}

void Reduce(const __m512* groups, float* out) {
  const __m512i rows = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
  const __m512 low = ReduceFour(groups);
  const __m512 high = ReduceFour(groups + 4);
  _mm512_store_ps(out, _mm512_permutex2var_ps(low, rows, high));
}

}  // namespace

void BlockGemmBf16Avx512Bf16(const BlockGemmArgs& args) {
  // Block after block: the weights of both are then one long sequential read each.
  __m512 sums[kNarrowColumns][kGroups];
  for (int b = 0; b < args.blocks; ++b) {
    for (int64_t begin = 0; begin < args.k16s; begin += kChunk) {
      const int64_t end = begin + kChunk < args.k16s ? begin + kChunk : args.k16s;
      const uint8_t* weights = args.weights[b] + begin * kBf16PieceBytes;
      const uint8_t* ahead = end < args.k16s       ? args.weights[b] + end * kBf16PieceBytes
                             : b + 1 < args.blocks ? args.weights[b + 1]
                                                   : args.next;
      const int64_t k16s = end - begin;
      const int64_t x_offset = begin * kOperand;
      const bool resume = begin > 0;
      if (args.columns <= 4) {
        Columns<8>(args.columns, weights, k16s, args.x, x_offset, resume, sums, ahead);
      } else {
        Columns<4>(4, weights, k16s, args.x, x_offset, resume, sums, ahead);
        Columns<4>(args.columns - 4, weights, k16s, args.x + 4, x_offset, resume, sums + 4,
                   ahead + k16s * 4 * 64);
      }
    }
    for (int c = 0; c < args.columns; ++c) {
      Reduce(sums[c], args.out + (b * kMaxColumns + c) * kBlockRows);
    }
  }
}

}  // namespace moert::kernels
#endif
