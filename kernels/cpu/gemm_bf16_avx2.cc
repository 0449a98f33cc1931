// bf16 weights x fp32 activations, AVX2 and FMA. Two 32-byte loads hold rows g and g + 8 of a piece
// (t = 0, 1 and t = 2, 3); both are summed into one accumulator, so an output row is the sum of 4
// of its 8 lanes. The operand is that of the AVX-512 fp32 kernel.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/block_gemm.h"

namespace moert::kernels {
namespace {

constexpr int kGroups = 8;         // accumulators of a row block: rows g and g + 8
constexpr int64_t kOperand = 128;  // bytes of an operand piece: even channels, odd channels
constexpr int64_t kAhead = 6;      // pieces of weights fetched ahead (3 KiB)
constexpr int64_t kChunk = 16;     // pieces that stay in L1 while more than 1 column uses them

// Where the weights come from that are needed kAhead pieces later.
struct Ahead {
  const uint8_t* here;
  const uint8_t* next;
  int64_t switch_at;
};

const float* Floats(const uint8_t* p) { return reinterpret_cast<const float*>(p); }

// Columns [0, C) x groups [g0, g0 + G) over `k16s` pieces; `resume` continues earlier sums.
template <int G, int C, bool kPrefetch>
void Tile(const uint8_t* weights, int64_t k16s, const uint8_t* const* x, int64_t x_offset,
          bool resume, int g0, __m256 (*sums)[kGroups], const Ahead& ahead) {
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
    if (kPrefetch) {
      const uint8_t* p = (i < ahead.switch_at ? ahead.here : ahead.next) + i * kBf16PieceBytes;
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) _mm_prefetch((const char*)(p + (g0 + g) * 64), _MM_HINT_T0);
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256 even[C], odd[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        even[c] = _mm256_load_ps(Floats(column[c] + i * kOperand + half * 32));
        odd[c] = _mm256_load_ps(Floats(column[c] + i * kOperand + 64 + half * 32));
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

template <bool kPrefetch>
void Columns(int count, const uint8_t* weights, int64_t k16s, const uint8_t* const* x,
             int64_t x_offset, bool resume, __m256 (*sums)[kGroups], const Ahead& ahead) {
  if (count == 1) {
    Tile<8, 1, kPrefetch>(weights, k16s, x, x_offset, resume, 0, sums, ahead);
  } else {
    Tile<4, 2, kPrefetch>(weights, k16s, x, x_offset, resume, 0, sums, ahead);
    Tile<4, 2, kPrefetch>(weights, k16s, x, x_offset, resume, 4, sums, ahead);
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
  __m256 sums[kMaxBlocks][kMaxColumns][kGroups];
  const int64_t chunk = args.columns == 1 ? args.k16s : kChunk;
  for (int64_t begin = 0; begin < args.k16s; begin += chunk) {
    const int64_t end = begin + chunk < args.k16s ? begin + chunk : args.k16s;
    for (int b = 0; b < args.blocks; ++b) {
      const uint8_t* weights = args.weights[b] + begin * kBf16PieceBytes;
      const uint8_t* after = b + 1 < args.blocks ? args.weights[b + 1] + begin * kBf16PieceBytes
                             : end < args.k16s   ? args.weights[0] + end * kBf16PieceBytes
                                                 : args.next;
      const int64_t k16s = end - begin;
      const Ahead ahead = {weights + kAhead * kBf16PieceBytes,
                           after + (kAhead - k16s) * kBf16PieceBytes, k16s - kAhead};
      int width = args.columns < 2 ? args.columns : 2;
      Columns<true>(width, weights, k16s, args.x, begin * kOperand, begin > 0, sums[b], ahead);
      for (int c = width; c < args.columns; c += width) {
        width = args.columns - c < 2 ? args.columns - c : 2;
        Columns<false>(width, weights, k16s, args.x + c, begin * kOperand, begin > 0, sums[b] + c,
                       ahead);
      }
    }
  }
  for (int b = 0; b < args.blocks; ++b) {
    for (int c = 0; c < args.columns; ++c) {
      Reduce(sums[b][c], args.out + (b * kMaxColumns + c) * kBlockRows);
    }
  }
}

}  // namespace moert::kernels
#endif
