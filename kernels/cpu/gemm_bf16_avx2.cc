// bf16 weights x fp32 activations, AVX2 and FMA. Two 32-byte loads hold rows g and g + 8 of a piece
// (t = 0, 1 and t = 2, 3); both are summed into one accumulator, so an output row is the sum of 4
// of its 8 lanes. The operand is that of the AVX-512 fp32 kernel.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/block_gemm.h"

namespace moert::kernels {
namespace {

constexpr int kGroups = 8;        // accumulators of a row block: rows g and g + 8
constexpr int64_t kOperand = 64;  // bytes of an operand piece: {2t, 2t+8, 2t+1, 2t+9} for t = 0..3
constexpr int64_t kChunk = 16;    // pieces (8 KiB) that stay in L1 until all columns have used them

const float* Floats(const uint8_t* p) { return reinterpret_cast<const float*>(p); }

// Columns [0, C) x groups [g0, g0 + G) over `k16s` pieces; `resume` continues earlier sums.
// Meanwhile fetches kLines cache lines a piece from `ahead`: weights of the next chunk.
template <int G, int C, int kLines>
void Tile(const uint8_t* weights, int64_t k16s, const uint8_t* const* x, int64_t x_offset,
          bool resume, int g0, __m256 (*sums)[kGroups], const uint8_t* ahead) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  __m256 acc[G][C];
  const uint8_t* column[C];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    column[c] = x[c] + x_offset;
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) acc[g][c] = resume ? sums[c][g0 + g] : _mm256_setzero_ps();
  }
  const uint8_t* w = weights + g0 * 64;
  for (int64_t i = 0; i < k16s; ++i) {
#pragma GCC unroll 8
    for (int line = 0; line < kLines; ++line) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead + (i * kLines + line) * 64), _MM_HINT_T0);
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256 even[C], odd[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        const __m256 x4 = _mm256_load_ps(Floats(column[c] + i * kOperand + half * 32));
        even[c] = _mm256_unpacklo_ps(x4, x4);
        odd[c] = _mm256_unpackhi_ps(x4, x4);
      }
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) {
        const __m256i pair = _mm256_load_si256(
            reinterpret_cast<const __m256i*>(w + i * kBf16PieceBytes + g * 64 + half * 32));
        const __m256 w_even = _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
        const __m256 w_odd = _mm256_castsi256_ps(_mm256_and_si256(pair, high));
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) acc[g][c] = _mm256_fmadd_ps(w_even, even[c], acc[g][c]);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) acc[g][c] = _mm256_fmadd_ps(w_odd, odd[c], acc[g][c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) sums[c][g0 + g] = acc[g][c];
  }
}

// All groups of up to 2 columns, fetching kLines lines a piece of the weights from `ahead`.
template <int kLines>
void Columns(int count, const uint8_t* weights, int64_t k16s, const uint8_t* const* x,
             int64_t x_offset, bool resume, __m256 (*sums)[kGroups], const uint8_t* ahead) {
  switch (count) {
    case 1:
      Tile<8, 1, kLines>(weights, k16s, x, x_offset, resume, 0, sums, ahead);
      break;
    default:
      Tile<4, 2, kLines / 2>(weights, k16s, x, x_offset, resume, 0, sums, ahead);
      Tile<4, 2, kLines / 2>(weights, k16s, x, x_offset, resume, 4, sums,
                             ahead + k16s * kLines / 2 * 64);
      break;
  }
}

// Lanes t * 4 + r, t = 0, 1 (sums over even and odd t) -> row g: r0 + r2, row g + 8: r1 + r3.
void Reduce(const __m256* groups, float* out) {
  for (int g = 0; g < kGroups; ++g) {
    const __m128 over_t =
        _mm_add_ps(_mm256_castps256_ps128(groups[g]), _mm256_extractf128_ps(groups[g], 1));
    const __m128 rows = _mm_add_ps(over_t, _mm_movehl_ps(over_t, over_t));
    _mm_store_ss(out + g, rows);
    _mm_store_ss(out + g + 8, _mm_shuffle_ps(rows, rows, 0x55));
  }
}

}  // namespace

void BlockGemmBf16F32Avx2(const BlockGemmArgs& args) {
  // Block after block: the weights of both are then one long sequential read each.
  __m256 sums[kNarrowColumns][kGroups];
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
      // Only the first columns prefetch; after them, AVX2 is bound by arithmetic.
      Columns<8>(args.columns < 2 ? args.columns : 2, weights, k16s, args.x, x_offset, resume, sums,
                 ahead);
      for (int c = 2; c < args.columns; c += 2) {
        Columns<0>(args.columns - c < 2 ? args.columns - c : 2, weights, k16s, args.x + c, x_offset,
                   resume, sums + c, ahead);
      }
    }
    for (int c = 0; c < args.columns; ++c) {
      Reduce(sums[c], args.out + (b * kMaxColumns + c) * kBlockRows);
    }
  }
}

}  // namespace moert::kernels
#endif
