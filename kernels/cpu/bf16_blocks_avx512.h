// Products of bf16 row blocks by AVX-512 with any multiply instruction (`Dot`): blocking, prefetch
// and reduction. Only for files compiled with that ISA. Everything here has internal linkage or the
// linkage of its parameter, so nothing of it can be linked into other files' code.
//
// One 64-byte load of a piece holds rows g and g + 8 for all 16 channels. `Dot` defines how an
// operand piece is held in registers and multiplied; it has
//   kOperand            bytes of an operand piece
//   kGroupsOfThree      groups at once of three columns: as many as fit the registers
//   Operand, Load(p)    an operand piece, spread over the lanes
//   Add<C>(w, x, acc)   acc[c] += the pairs at w times x[c], for each of C columns
#ifndef MOERT_KERNELS_CPU_BF16_BLOCKS_AVX512_H_
#define MOERT_KERNELS_CPU_BF16_BLOCKS_AVX512_H_

#include <immintrin.h>

#include "kernels/cpu/block_gemm.h"

namespace moert::kernels {

constexpr int kGroups = 8;      // accumulators of a row block: rows g and g + 8
constexpr int64_t kChunk = 16;  // pieces (8 KiB) that stay in L1 until all columns have used them

// Columns [0, C) x groups [g0, g0 + G) over `k16s` pieces; `resume` continues earlier sums.
// Meanwhile fetches kLines cache lines a piece from `ahead`: weights of the next chunk.
template <class Dot, int G, int C, int kLines>
void Tile(const uint8_t* weights, int64_t k16s, const uint8_t* const* x, int64_t x_offset,
          bool resume, int g0, __m512 (*sums)[kGroups], const uint8_t* ahead) {
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
    typename Dot::Operand operand[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) operand[c] = Dot::Load(column[c] + i * Dot::kOperand);
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      Dot::template Add<C>(w + i * kBf16PieceBytes + g * 64, operand, acc[g]);
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) sums[c][g0 + g] = acc[g][c];
  }
}

// All groups of C columns, G at once.
template <class Dot, int G, int C, int kLines>
void Groups(const uint8_t* weights, int64_t k16s, const uint8_t* const* x, int64_t x_offset,
            bool resume, __m512 (*sums)[kGroups], const uint8_t* ahead) {
  constexpr int kShare = kLines * G / kGroups;  // of the lines, for each pass over the pieces
  for (int g0 = 0; g0 < kGroups; g0 += G) {
    Tile<Dot, G, C, kShare>(weights, k16s, x, x_offset, resume, g0, sums, ahead);
    ahead += k16s * kShare * 64;
  }
}

// All groups of up to 4 columns, fetching kLines lines a piece of the weights from `ahead`.
template <class Dot, int kLines>
void Columns(int count, const uint8_t* weights, int64_t k16s, const uint8_t* const* x,
             int64_t x_offset, bool resume, __m512 (*sums)[kGroups], const uint8_t* ahead) {
  switch (count) {
    case 1:
      return Groups<Dot, 8, 1, kLines>(weights, k16s, x, x_offset, resume, sums, ahead);
    case 2:
      return Groups<Dot, 8, 2, kLines>(weights, k16s, x, x_offset, resume, sums, ahead);
    case 3:
      return Groups<Dot, Dot::kGroupsOfThree, 3, kLines>(weights, k16s, x, x_offset, resume, sums,
                                                         ahead);
    default:
      return Groups<Dot, 4, 4, kLines>(weights, k16s, x, x_offset, resume, sums, ahead);
  }
}

// Lane t * 4 + r of four accumulators -> for each, sum over t of {r0 + r2, r1 + r3, ...}.
[[gnu::always_inline]] static inline __m512 ReduceFour(const __m512* a) {
  const __m512 ab =
      _mm512_add_ps(_mm512_shuffle_f32x4(a[0], a[1], 0x44), _mm512_shuffle_f32x4(a[0], a[1], 0xee));
  const __m512 cd =
      _mm512_add_ps(_mm512_shuffle_f32x4(a[2], a[3], 0x44), _mm512_shuffle_f32x4(a[2], a[3], 0xee));
  const __m512 abcd =
      _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  return _mm512_add_ps(abcd, _mm512_permute_ps(abcd, 0x4e));
}

[[gnu::always_inline]] static inline void Reduce(const __m512* groups, float* out) {
  const __m512i rows = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
  const __m512 low = ReduceFour(groups);
  const __m512 high = ReduceFour(groups + 4);
  _mm512_store_ps(out, _mm512_permutex2var_ps(low, rows, high));
}

// Multiplies block after block, so that the weights of each are one long sequential read.
template <class Dot>
void Blocks(const BlockGemmArgs& args) {
  __m512 sums[kNarrowColumns][kGroups];
  for (int b = 0; b < args.blocks; ++b) {
    for (int64_t begin = 0; begin < args.k16s; begin += kChunk) {
      const int64_t end = begin + kChunk < args.k16s ? begin + kChunk : args.k16s;
      const uint8_t* weights = args.weights[b] + begin * kBf16PieceBytes;
      const uint8_t* ahead = end < args.k16s       ? args.weights[b] + end * kBf16PieceBytes
                             : b + 1 < args.blocks ? args.weights[b + 1]
                                                   : args.next;
      const int64_t k16s = end - begin;
      const int64_t x_offset = begin * Dot::kOperand;
      const bool resume = begin > 0;
      if (args.columns <= 4) {
        Columns<Dot, 8>(args.columns, weights, k16s, args.x, x_offset, resume, sums, ahead);
      } else {
        Columns<Dot, 4>(4, weights, k16s, args.x, x_offset, resume, sums, ahead);
        Columns<Dot, 4>(args.columns - 4, weights, k16s, args.x + 4, x_offset, resume, sums + 4,
                        ahead + k16s * 4 * 64);
      }
    }
    for (int c = 0; c < args.columns; ++c) {
      Reduce(sums[c], args.out + (b * kMaxColumns + c) * kBlockRows);
    }
  }
}

}  // namespace moert::kernels

#endif  // MOERT_KERNELS_CPU_BF16_BLOCKS_AVX512_H_
