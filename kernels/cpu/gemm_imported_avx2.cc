// fp32 activations x imported schemes, AVX2, FMA and F16C. Codes become floats in registers, which
// is exact: nibbles by way of bytes around zero (e2m1: twice their values), e4m3 by way of a
// binary16 number that is 2^-8 times as large. The sums of a group are scaled lane by lane, so rows
// are summed once, at the end. Rows of activations are those of quantized weights
// (gemm_float_avx2.cc).
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/block_gemm.h"
#include "kernels/cpu/imported_codes.h"
#include "kernels/cpu/quantized_avx2.h"

namespace moert::kernels {
namespace {

using Codes = ImportedCodes;

constexpr int64_t kOperand = 64;  // bytes of a piece of x
constexpr int64_t kChunk = 32;  // pieces that stay in the L1 cache for all columns
constexpr int kSums = 16;       // accumulators of a column

// 16 scales as floats, times `factor`.
void ReadScales(const uint8_t* from, int form, float factor, float* scales) {
  for (int64_t row = 0; row < kBlockRows; row += 8) {
    __m256 values;
    if (form == kScaleBF16) {
      values = Widen(reinterpret_cast<const uint16_t*>(from + row * 2));
    } else if (form == kScaleF16) {
      values = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + row * 2)));
    } else if (form == kScaleF32) {
      values = _mm256_loadu_ps(reinterpret_cast<const float*>(from + row * 4));
    } else {
      const __m256i bytes =
          _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + row)));
      if (form == kScaleE8M0) {
        // 2^-127 is subnormal: half of 2^-126.
        const __m256i zero = _mm256_cmpeq_epi32(bytes, _mm256_setzero_si256());
        values = _mm256_castsi256_ps(_mm256_or_si256(
            _mm256_slli_epi32(bytes, 23), _mm256_and_si256(zero, _mm256_set1_epi32(0x00400000))));
      } else {
        // e4m3 without sign: binary16 of 2^-8 of it.
        const __m256i half_bits = _mm256_slli_epi32(bytes, 7);
        const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(half_bits),
                                                _mm256_extracti128_si256(half_bits, 1));
        values = _mm256_mul_ps(_mm256_cvtph_ps(packed), _mm256_set1_ps(256.0f));
      }
    }
    _mm256_store_ps(scales + row, _mm256_mul_ps(values, _mm256_set1_ps(factor)));
  }
}

// The pieces [begin, end) of a row block, with the scales and zeros of their groups.
struct Chunk {
  const uint8_t* weights;
  int64_t begin, end, group_k16s, zero_stride;
  const uint8_t* zeros;  // of the first group, or null for 8
  alignas(32) float scales[kChunk][kBlockRows];
};

template <Codes kCodes>
void Describe(const BlockGemmArgs& args, int b, int64_t begin, int64_t end, Chunk* chunk) {
  constexpr int64_t kPieceBytes = kCodes == Codes::kE4M3 ? 256 : 128;
  // The factor that turns decoded codes into their values.
  constexpr float kUndo = kCodes == Codes::kE4M3 ? 256.0f : kCodes == Codes::kE2M1 ? 0.5f : 1.0f;
  chunk->weights = args.weights[b] + begin * kPieceBytes;
  for (int64_t line = 0; line < (end - begin) * kPieceBytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(chunk->weights + kImportedAhead + line),
                 _MM_HINT_T0);
  }
  chunk->begin = begin;
  chunk->end = end;
  chunk->group_k16s = args.group_k16s;
  chunk->zero_stride = args.scale_stride;
  const int64_t first = begin / args.group_k16s;
  chunk->zeros = args.zeros[b] != nullptr ? args.zeros[b] + first * args.scale_stride : nullptr;
  for (int64_t group = first; group * args.group_k16s < end; ++group) {
    const int64_t at = group * args.scale_stride;
    ReadScales(ImportedScalesAt(args, b, at), args.scale_form, kUndo, chunk->scales[group - first]);
    FetchImportedScales(args, b, at);
  }
}

// The value of row r in four lanes, and of the next row in the other four.
[[gnu::always_inline]] inline __m256 OfRows(const float* rows, int r) {
  return _mm256_blend_ps(_mm256_broadcast_ss(rows + r), _mm256_broadcast_ss(rows + r + 1), 0xf0);
}

// acc += bytes times the matching channels, one byte of each lane's word at a time.
template <int C>
[[gnu::always_inline]] inline void AddBytes(__m256 (&acc)[C], __m256i bytes,
                                            const uint8_t* const (&x)[C]) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m256 code =
        _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(bytes, 24 - 8 * i), 24));
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      const __m256 four = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(x[c] + i * 16));
      acc[c] = _mm256_fmadd_ps(code, four, acc[c]);
    }
  }
}

// Nibbles in the low halves of bytes -> bytes around zero.
template <Codes kCodes>
[[gnu::always_inline]] inline __m256i Signed(__m256i nibbles, __m256i zeros) {
  if constexpr (kCodes == Codes::kInt4) return _mm256_sub_epi8(nibbles, zeros);
  const __m256i twice = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
  return _mm256_shuffle_epi8(twice, nibbles);
}

// Rows 2j, 2j + 1 (totals[c][j]) and 2j + 8, 2j + 9 (totals[c][4 + j]) for j in [j0, j0 + J).
template <Codes kCodes, int J, int C>
void Nibbles(const Chunk& chunk, const uint8_t* const* x, int j0, __m256 (*totals)[kSums]) {
  const __m256i mask = _mm256_set1_epi8(15);
  const uint8_t* w = chunk.weights + j0 * 32;
  const uint8_t* column[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) column[c] = x[c] + chunk.begin * kOperand;
  const int64_t first = chunk.begin / chunk.group_k16s;
  int64_t piece = chunk.begin;
  for (int64_t g = 0; piece < chunk.end; ++g) {
    const int64_t next = (first + g + 1) * chunk.group_k16s;
    const int64_t stop = next < chunk.end ? next : chunk.end;
    __m256i zeros = _mm256_set1_epi8(8);
    if (kCodes == Codes::kInt4 && chunk.zeros != nullptr) {
      zeros = _mm256_broadcastsi128_si256(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(chunk.zeros + g * chunk.zero_stride)));
    }
    __m256 low[J][C], high[J][C];
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) low[j][c] = high[j][c] = _mm256_setzero_ps();
    }
    for (; piece < stop; ++piece, w += 128) {
#pragma GCC unroll 4
      for (int j = 0; j < J; ++j) {
        const __m256i rows =
            _mm256_add_epi8(_mm256_set1_epi8(static_cast<char>(2 * (j0 + j))),
                            _mm256_setr_epi64x(0, 0, 0x0101010101010101, 0x0101010101010101));
        const __m256i upper = _mm256_add_epi8(rows, _mm256_set1_epi8(8));
        const __m256i word = Load(w + j * 32);
        AddBytes<C>(low[j],
                    Signed<kCodes>(_mm256_and_si256(word, mask), _mm256_shuffle_epi8(zeros, rows)),
                    column);
        AddBytes<C>(high[j],
                    Signed<kCodes>(_mm256_and_si256(_mm256_srli_epi16(word, 4), mask),
                                   _mm256_shuffle_epi8(zeros, upper)),
                    column);
      }
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) column[c] += kOperand;
    }
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) {
      const __m256 scale = OfRows(chunk.scales[g], 2 * (j0 + j));
      const __m256 upper = OfRows(chunk.scales[g], 2 * (j0 + j) + 8);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        __m256* const to = totals[c] + j0 + j;
        to[0] = _mm256_fmadd_ps(low[j][c], scale, to[0]);
        to[4] = _mm256_fmadd_ps(high[j][c], upper, to[4]);
      }
    }
  }
}

// acc of row j (0) and j + 8 (1) += the codes of a piece, 8 channels at a time.
template <int C>
[[gnu::always_inline]] inline void AddHalves(__m256 (&acc)[2][C], __m256i halves,
                                             const uint8_t* const (&x)[C], int64_t at) {
  const __m256 row = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
  const __m256 upper = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    const __m256 eight = _mm256_load_ps(reinterpret_cast<const float*>(x[c] + at));
    acc[0][c] = _mm256_fmadd_ps(row, eight, acc[0][c]);
    acc[1][c] = _mm256_fmadd_ps(upper, eight, acc[1][c]);
  }
}

// Rows j (totals[c][j]) and j + 8 (totals[c][8 + j]) for j in [j0, j0 + J).
template <int J, int C>
void Bytes(const Chunk& chunk, const uint8_t* const* x, int j0, __m256 (*totals)[kSums]) {
  // Words of rows j and j + 8 alternate: the first shuffle gives each row a lane, the second sorts
  // by byte.
  const __m256i apart = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
  const __m256i first_bytes = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(-1, 0, -1, 4, -1, 8, -1, 12, -1, 1, -1, 5, -1, 9, -1, 13));
  const __m256i last_bytes = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(-1, 2, -1, 6, -1, 10, -1, 14, -1, 3, -1, 7, -1, 11, -1, 15));
  const uint8_t* w = chunk.weights + j0 * 32;
  const uint8_t* column[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) column[c] = x[c] + chunk.begin * kOperand;
  const int64_t first = chunk.begin / chunk.group_k16s;
  int64_t piece = chunk.begin;
  for (int64_t g = 0; piece < chunk.end; ++g) {
    const int64_t next = (first + g + 1) * chunk.group_k16s;
    const int64_t stop = next < chunk.end ? next : chunk.end;
    __m256 acc[J][2][C];
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[j][0][c] = acc[j][1][c] = _mm256_setzero_ps();
    }
    for (; piece < stop; ++piece, w += 256) {
#pragma GCC unroll 4
      for (int j = 0; j < J; ++j) {
        const __m256i words = _mm256_permutevar8x32_epi32(Load(w + j * 32), apart);
        AddHalves<C>(acc[j], HalfOf(_mm256_shuffle_epi8(words, first_bytes)), column, 0);
        AddHalves<C>(acc[j], HalfOf(_mm256_shuffle_epi8(words, last_bytes)), column, 32);
      }
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) column[c] += kOperand;
    }
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) {
      const __m256 scale = _mm256_broadcast_ss(chunk.scales[g] + j0 + j);
      const __m256 upper = _mm256_broadcast_ss(chunk.scales[g] + j0 + j + 8);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        __m256* const to = totals[c] + j0 + j;
        to[0] = _mm256_fmadd_ps(acc[j][0][c], scale, to[0]);
        to[8] = _mm256_fmadd_ps(acc[j][1][c], upper, to[8]);
      }
    }
  }
}

template <Codes kCodes, int J, int C>
void AllRows(const Chunk& chunk, const uint8_t* const* x, __m256 (*totals)[kSums]) {
  if constexpr (kCodes == Codes::kE4M3) {
    for (int j = 0; j < 8; j += J) Bytes<J, C>(chunk, x, j, totals);
  } else {
    for (int j = 0; j < 4; j += J) Nibbles<kCodes, J, C>(chunk, x, j, totals);
  }
}

template <Codes kCodes>
void Columns(int count, const Chunk& chunk, const uint8_t* const* x, __m256 (*totals)[kSums]) {
  switch (count) {
    case 1:
      return AllRows<kCodes, 4, 1>(chunk, x, totals);
    case 2:
      return AllRows<kCodes, 2, 2>(chunk, x, totals);
    case 3:
      return AllRows<kCodes, 1, 3>(chunk, x, totals);
    default:
      return AllRows<kCodes, 1, 4>(chunk, x, totals);
  }
}

// totals of a column -> the 16 rows in order.
template <Codes kCodes>
void StoreRows(const __m256* totals, __m256 scale, float* to) {
  alignas(32) float sums[kSums][8];
  for (int i = 0; i < kSums; ++i) _mm256_store_ps(sums[i], totals[i]);
  alignas(32) float rows[kBlockRows];
  for (int r = 0; r < kBlockRows; ++r) {
    const float* s = kCodes == Codes::kE4M3 ? sums[r] : sums[r / 2] + r % 2 * 4;
    rows[r] = (s[0] + s[1]) + (s[2] + s[3]);
    if (kCodes == Codes::kE4M3) rows[r] += (s[4] + s[5]) + (s[6] + s[7]);
  }
  _mm256_store_ps(to, _mm256_mul_ps(_mm256_load_ps(rows), scale));
  _mm256_store_ps(to + 8, _mm256_mul_ps(_mm256_load_ps(rows + 8), scale));
}

template <Codes kCodes>
void Gemm(const BlockGemmArgs& args) {
  const int64_t pieces = ImportedPieces(args);
  Chunk chunk;
  for (int b = 0; b < args.blocks; ++b) {
    __m256 totals[kNarrowColumns][kSums];
    for (int c = 0; c < args.columns; ++c) {
      for (__m256& total : totals[c]) total = _mm256_setzero_ps();
    }
    for (int64_t begin = 0; begin < pieces; begin += kChunk) {
      const int64_t end = begin + kChunk < pieces ? begin + kChunk : pieces;
      Describe<kCodes>(args, b, begin, end, &chunk);
      for (int c = 0; c < args.columns; c += kColumnsAtOnce) {
        const int some = args.columns - c < kColumnsAtOnce ? args.columns - c : kColumnsAtOnce;
        Columns<kCodes>(some, chunk, args.x + c, totals + c);
      }
    }
    const float scale = args.matrix_scale[b] != nullptr ? *args.matrix_scale[b] : 1.0f;
    for (int c = 0; c < args.columns; ++c) {
      StoreRows<kCodes>(totals[c], _mm256_set1_ps(scale),
                        args.out + (b * kMaxColumns + c) * kBlockRows);
    }
  }
}

}  // namespace

void BlockGemmImportedW4Avx2(const BlockGemmArgs& args) { Gemm<Codes::kInt4>(args); }
void BlockGemmImportedF4Avx2(const BlockGemmArgs& args) { Gemm<Codes::kE2M1>(args); }
void BlockGemmImportedF8Avx2(const BlockGemmArgs& args) { Gemm<Codes::kE4M3>(args); }

}  // namespace moert::kernels
#endif
