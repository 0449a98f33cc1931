// bf16 activations x imported schemes, AVX512-BF16 (vdpbf16ps). Codes become bf16 pairs in
// registers, which is exact; the sums of a group are scaled lane by lane, so rows are summed once,
// at the end.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/block_gemm.h"
#include "kernels/cpu/imported_avx512.h"
#include "kernels/cpu/pairs_avx512bf16.h"
#include "kernels/cpu/quantized_avx512.h"

namespace moert::kernels {
namespace {

constexpr int kColumnsAtOnce = 4;  // their accumulators fit the registers
constexpr int64_t kChunk = 32;     // pieces that stay in the L1 cache for all columns

// The summand of codes: nothing, or minus the zero point of each row of a quarter, in every byte.
struct Zeros {
  __m512i of[kQuarters];
};

// Rows of a quarter's lanes.
template <int kBits>
[[gnu::always_inline]] inline __m512i RowsOfQuarter(int q) {
  if constexpr (kBits == 8) {
    return _mm512_add_epi32(_mm512_setr_epi32(0, 8, 0, 8, 0, 8, 0, 8, 1, 9, 1, 9, 1, 9, 1, 9),
                            _mm512_set1_epi32(2 * q));
  }
  return _mm512_add_epi32(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
                          _mm512_set1_epi32(4 * q));
}

[[gnu::always_inline]] inline Zeros ReadZeros(const uint8_t* from) {
  const __m512i bytes =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  const __m512i first =
      _mm512_setr_epi64(0, 0, 0x0101010101010101, 0x0101010101010101, 0x0202020202020202,
                        0x0202020202020202, 0x0303030303030303, 0x0303030303030303);
  Zeros zeros;
#pragma GCC unroll 4
  for (int q = 0; q < kQuarters; ++q) {
    zeros.of[q] = _mm512_shuffle_epi8(
        bytes, _mm512_add_epi8(first, _mm512_set1_epi8(static_cast<char>(4 * q))));
  }
  return zeros;
}

template <ImportedCodes kCodes, bool kZeros, int C>
[[gnu::always_inline]] inline void AddPiece(__m512 (&acc)[kQuarters][C], const uint8_t* w,
                                            __m512i table, const Zeros& zeros,
                                            const Operand<C>& x) {
  if constexpr (kCodes == ImportedCodes::kE4M3) {
#pragma GCC unroll 4
    for (int q = 0; q < kQuarters; ++q) {
      const __m512i codes = Load(w + q * 64);
      Add<C>(acc[q], ExpandF8<false>(codes, table), x.low);
      Add<C>(acc[q], ExpandF8<true>(codes, table), x.high);
    }
  } else {
    const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m512i low = Load(w + half * 64), high = _mm512_srli_epi16(low, 4);
      if constexpr (kZeros) {
        low = _mm512_sub_epi8(_mm512_and_si512(low, mask), zeros.of[half]);
        high = _mm512_sub_epi8(_mm512_and_si512(high, mask), zeros.of[half + 2]);
      }
      AddCodes<C>(acc[half], low, table, x);
      AddCodes<C>(acc[half + 2], high, table, x);
    }
  }
}

// totals += scale x sums of the pieces [begin, end) of row block b, for C columns from `first` on.
template <ImportedCodes kCodes, bool kZeros, int C, bool kFetch>
void Chunk(const BlockGemmArgs& args, int b, int first, int64_t begin, int64_t end,
           __m512 (*totals)[kNarrowColumns]) {
  constexpr int kBits = kCodes == ImportedCodes::kE4M3 ? 8 : 4;
  constexpr int64_t kPieceBytes = kBits * 32;
  const __m512i table = ImportedTable<kCodes, kZeros>();
  const uint8_t* column[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) column[c] = args.x[first + c];
  const uint8_t* w = args.weights[b] + begin * kPieceBytes;
  for (int64_t p = begin; p < end;) {
    const int64_t group = p / args.group_k16s;
    const int64_t next = (group + 1) * args.group_k16s;
    const int64_t stop = next < end ? next : end;
    const int64_t at = group * args.scale_stride;
    Zeros zeros = {};
    if constexpr (kZeros) zeros = ReadZeros(args.zeros[b] + at);
    if constexpr (kFetch) FetchImportedScales(args, b, at);
    __m512 acc[kQuarters][C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
      for (int q = 0; q < kQuarters; ++q) acc[q][c] = _mm512_setzero_ps();
    }
    for (; p < stop; ++p, w += kPieceBytes) {
      if constexpr (kFetch) FetchPiece<kBits>(w);
      AddPiece<kCodes, kZeros, C>(acc, w, table, zeros, Spread<C, kBits == 8>(column, p));
    }
    const __m512 scales = ImportedScales(args.raw_scales[b], args.scale_form, at);
#pragma GCC unroll 4
    for (int q = 0; q < kQuarters; ++q) {
      const __m512 scale = _mm512_permutexvar_ps(RowsOfQuarter<kBits>(q), scales);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        totals[q][first + c] = _mm512_fmadd_ps(acc[q][c], scale, totals[q][first + c]);
      }
    }
  }
}

template <ImportedCodes kCodes, bool kZeros, bool kFetch>
void ChunkOf(int columns, const BlockGemmArgs& args, int b, int first, int64_t begin, int64_t end,
             __m512 (*totals)[kNarrowColumns]) {
  switch (columns) {
    case 1:
      return Chunk<kCodes, kZeros, 1, kFetch>(args, b, first, begin, end, totals);
    case 2:
      return Chunk<kCodes, kZeros, 2, kFetch>(args, b, first, begin, end, totals);
    case 3:
      return Chunk<kCodes, kZeros, 3, kFetch>(args, b, first, begin, end, totals);
    default:
      return Chunk<kCodes, kZeros, 4, kFetch>(args, b, first, begin, end, totals);
  }
}

template <ImportedCodes kCodes, bool kZeros = false>
void Gemm(const BlockGemmArgs& args) {
  constexpr int kBits = kCodes == ImportedCodes::kE4M3 ? 8 : 4;
  const int64_t pieces = ImportedPieces(args);
  for (int b = 0; b < args.blocks; ++b) {
    __m512 totals[kQuarters][kNarrowColumns];
    for (int c = 0; c < args.columns; ++c) {
      for (int q = 0; q < kQuarters; ++q) totals[q][c] = _mm512_setzero_ps();
    }
    const int few = args.columns < kColumnsAtOnce ? args.columns : kColumnsAtOnce;
    for (int64_t begin = 0; begin < pieces; begin += kChunk) {
      const int64_t end = begin + kChunk < pieces ? begin + kChunk : pieces;
      ChunkOf<kCodes, kZeros, true>(few, args, b, 0, begin, end, totals);
      if (args.columns > few) {
        ChunkOf<kCodes, kZeros, false>(args.columns - few, args, b, few, begin, end, totals);
      }
    }
    const float* const scale = args.matrix_scale[b];
    const __m512 last = _mm512_set1_ps(scale != nullptr ? *scale : 1.0f);
    for (int c = 0; c < args.columns; ++c) {
      const __m512 sum = kBits == 8 ? Rows8(totals[0][c], totals[1][c], totals[2][c], totals[3][c])
                                    : Rows(totals[0][c], totals[1][c], totals[2][c], totals[3][c]);
      _mm512_store_ps(args.out + (b * kMaxColumns + c) * kBlockRows, _mm512_mul_ps(sum, last));
    }
  }
}

}  // namespace

void BlockGemmImportedW4Avx512Bf16(const BlockGemmArgs& args) {
  return args.zeros[0] != nullptr ? Gemm<ImportedCodes::kInt4, true>(args)
                                  : Gemm<ImportedCodes::kInt4>(args);
}
void BlockGemmImportedF4Avx512Bf16(const BlockGemmArgs& args) { Gemm<ImportedCodes::kE2M1>(args); }
void BlockGemmImportedF8Avx512Bf16(const BlockGemmArgs& args) { Gemm<ImportedCodes::kE4M3>(args); }

}  // namespace moert::kernels
#endif
