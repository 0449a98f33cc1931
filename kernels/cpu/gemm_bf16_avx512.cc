// bf16 weights x fp32 activations, AVX-512: weights are widened in registers (a bf16 is the high
// half of a float), even and odd channels apart. Loads, blocking and reduction are those of
// gemm_bf16_avx512bf16.cc; the operand piece is twice as long.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/block_gemm.h"

namespace moert::kernels {
namespace {

constexpr int kGroups = 8;         // accumulators of a row block: rows g and g + 8
constexpr int64_t kOperand = 128;  // bytes of an operand piece: even channels, odd channels
constexpr int64_t kAhead = 6;      // pieces of weights fetched ahead (3 KiB)
constexpr int64_t kChunk = 16;     // pieces that stay in L1 while more than 2 columns use them

// Where the weights come from that are needed kAhead pieces later.
struct Ahead {
  const uint8_t* here;
  const uint8_t* next;
  int64_t switch_at;
};

// Columns [0, C) x groups [g0, g0 + G) over `k16s` pieces; `resume` continues earlier sums.
template <int G, int C, bool kPrefetch>
void Tile(const uint8_t* weights, int64_t k16s, const uint8_t* const* x, int64_t x_offset,
          bool resume, int g0, __m512 (*sums)[kGroups], const Ahead& ahead) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
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
    if (kPrefetch) {
      const uint8_t* p = (i < ahead.switch_at ? ahead.here : ahead.next) + i * kBf16PieceBytes;
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) _mm_prefetch((const char*)(p + (g0 + g) * 64), _MM_HINT_T0);
    }
    __m512 even[C], odd[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      even[c] = _mm512_load_ps(reinterpret_cast<const float*>(column[c] + i * kOperand));
      odd[c] = _mm512_load_ps(reinterpret_cast<const float*>(column[c] + i * kOperand + 64));
    }
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      const __m512i pair = _mm512_load_si512(w + i * kBf16PieceBytes + g * 64);
      const __m512 w_even = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
      const __m512 w_odd = _mm512_castsi512_ps(_mm512_and_si512(pair, high));
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) acc[g][c] = _mm512_fmadd_ps(w_even, even[c], acc[g][c]);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) acc[g][c] = _mm512_fmadd_ps(w_odd, odd[c], acc[g][c]);
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
             int64_t x_offset, bool resume, __m512 (*sums)[kGroups], const Ahead& ahead) {
  switch (count) {
    case 1:
      Tile<8, 1, kPrefetch>(weights, k16s, x, x_offset, resume, 0, sums, ahead);
      break;
    case 2:
      Tile<8, 2, kPrefetch>(weights, k16s, x, x_offset, resume, 0, sums, ahead);
      break;
    case 3:
      Tile<4, 3, kPrefetch>(weights, k16s, x, x_offset, resume, 0, sums, ahead);
      Tile<4, 3, kPrefetch>(weights, k16s, x, x_offset, resume, 4, sums, ahead);
      break;
    default:
      Tile<4, 4, kPrefetch>(weights, k16s, x, x_offset, resume, 0, sums, ahead);
      Tile<4, 4, kPrefetch>(weights, k16s, x, x_offset, resume, 4, sums, ahead);
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

void BlockGemmBf16F32Avx512(const BlockGemmArgs& args) {
  __m512 sums[kMaxBlocks][kMaxColumns][kGroups];
  // Up to two columns fit in registers for the whole of k.
  const int64_t chunk = args.columns <= 2 ? args.k16s : kChunk;
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
      int width = args.columns < 4 ? args.columns : 4;
      Columns<true>(width, weights, k16s, args.x, begin * kOperand, begin > 0, sums[b], ahead);
      for (int c = width; c < args.columns; c += width) {
        width = args.columns - c < 4 ? args.columns - c : 4;
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
