// fp32 activations x quantized weights, AVX2 and FMA. Codes are widened in registers to floats
// around zero: by table for 2 and 3 bits, by sign extension for 4 and 8. Scales multiply the sums
// of a group, not weights. An operand piece is fp32, channels {2t}, {2t+8}, {2t+1}, {2t+9} for t =
// 0..3, so that one 16-byte load matches one byte of every lane's word.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/block_gemm.h"
#include "kernels/cpu/quantized_avx2.h"

namespace moert::kernels {
namespace {

constexpr int64_t kOperand = 64;  // bytes of a piece of x

// Byte b's channels of a piece, for two rows: lane g * 4 + t.
[[gnu::always_inline]] inline __m256 Spread(const uint8_t* column, int64_t piece, int b) {
  return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(column + piece * kOperand + b * 16));
}

// Two-bit field i (0..3) of each byte, low-aligned; of 3-bit codes, with bit kPlaneBit of `plane`
// as the third bit.
template <int kBits, int kField, int kPlaneBit>
[[gnu::always_inline]] inline __m256i Field(__m256i word, __m256i plane) {
  const __m256i low = _mm256_and_si256(_mm256_srli_epi16(word, 2 * kField), _mm256_set1_epi8(3));
  if constexpr (kBits == 2) return low;
  const __m256i bit = kPlaneBit >= 2 ? _mm256_srli_epi16(plane, kPlaneBit >= 2 ? kPlaneBit - 2 : 0)
                                     : _mm256_slli_epi16(plane, kPlaneBit >= 2 ? 0 : 2 - kPlaneBit);
  return _mm256_or_si256(low, _mm256_and_si256(bit, _mm256_set1_epi8(4)));
}

// Code `b` of each word, less the middle. kBits == 4: the low nibbles of `word`, or the high ones;
// signed already, as those of 8 bits are. Else a low-aligned field.
template <int kBits, bool kHigh>
[[gnu::always_inline]] inline __m256 CodeOf(__m256i word, int b) {
  if constexpr (kBits == 8) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(word, 24 - 8 * b), 24));
  } else if constexpr (kBits == 4) {
    return _mm256_cvtepi32_ps(
        _mm256_srai_epi32(_mm256_slli_epi32(word, (kHigh ? 24 : 28) - 8 * b), 28));
  } else {
    const __m256 table = kBits == 3 ? _mm256_setr_ps(-4, -3, -2, -1, 0, 1, 2, 3)
                                    : _mm256_setr_ps(-2, -1, 0, 1, -2, -1, 0, 1);
    return _mm256_permutevar8x32_ps(table, _mm256_srli_epi32(word, 8 * b));
  }
}

template <int kBits, bool kHigh, int C>
[[gnu::always_inline]] inline void Add(__m256 (&acc)[C], __m256i word,
                                       const uint8_t* const (&column)[C], int64_t piece) {
#pragma GCC unroll 4
  for (int b = 0; b < 4; ++b) {
    const __m256 code = CodeOf<kBits, kHigh>(word, b);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[c] = _mm256_fmadd_ps(code, Spread(column[c], piece, b), acc[c]);
  }
}

template <int kBits, int kWords, int C>
[[gnu::always_inline]] inline void AddPieces(__m256 (&low)[C], __m256 (&high)[C], __m256i word,
                                             __m256i plane, const uint8_t* const (&column)[C],
                                             int64_t p) {
  constexpr int kFirst = kWords * 4;
  Add<kBits, false, C>(low, Field<kBits, 0, kFirst>(word, plane), column, p);
  Add<kBits, false, C>(high, Field<kBits, 1, kFirst + 1>(word, plane), column, p);
  Add<kBits, false, C>(low, Field<kBits, 2, kFirst + 2>(word, plane), column, p + 1);
  Add<kBits, false, C>(high, Field<kBits, 3, kFirst + 3>(word, plane), column, p + 1);
}

// Rows 2j, 2j+1 (low) and 2j+8, 2j+9 (high) for j in [j0, j0 + J): sums[c][half][j].
template <int kBits, int J, int C>
void SmallCodes(const uint8_t* w, int64_t tiles, const uint8_t* const* x, int64_t x_offset, int j0,
                __m256 (*sums)[2][4]) {
  __m256 low[J][C], high[J][C];
  const uint8_t* column[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    column[c] = x[c] + x_offset;
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) low[j][c] = high[j][c] = _mm256_setzero_ps();
  }
  w += j0 * 32;
  for (int64_t tile = 0; tile < tiles; ++tile, w += kBits * 128) {
    const int64_t p = tile * kTilePieces;
    if constexpr (kBits == 4) {
      const __m256i middle = _mm256_set1_epi8(static_cast<char>(0x88));
#pragma GCC unroll 4
      for (int i = 0; i < kTilePieces; ++i) {
#pragma GCC unroll 4
        for (int j = 0; j < J; ++j) {
          const __m256i word = _mm256_xor_si256(Load(w + i * 128 + j * 32), middle);
          Add<4, false, C>(low[j], word, column, p + i);
          Add<4, true, C>(high[j], word, column, p + i);
        }
      }
    } else {
#pragma GCC unroll 4
      for (int j = 0; j < J; ++j) {
        const __m256i plane = kBits == 3 ? Load(w + 256 + j * 32) : _mm256_setzero_si256();
        AddPieces<kBits, 0, C>(low[j], high[j], Load(w + j * 32), plane, column, p);
        AddPieces<kBits, 1, C>(low[j], high[j], Load(w + 128 + j * 32), plane, column, p + 2);
      }
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) {
      sums[c][0][j0 + j] = low[j][c];
      sums[c][1][j0 + j] = high[j][c];
    }
  }
}

// Rows j and j + 8 for j in [j0, j0 + J): sums[c][j / 4][j % 4].
template <int J, int C>
void Bytes(const uint8_t* w, int64_t tiles, const uint8_t* const* x, int64_t x_offset, int j0,
           __m256 (*sums)[2][4]) {
  const __m256i middle = _mm256_set1_epi8(static_cast<char>(0x80));
  const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  __m256 acc[J][C];
  const uint8_t* column[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    column[c] = x[c] + x_offset;
#pragma GCC unroll 8
    for (int j = 0; j < J; ++j) acc[j][c] = _mm256_setzero_ps();
  }
  w += j0 * 32;
  for (int64_t piece = 0; piece < tiles * kTilePieces; ++piece, w += 256) {
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      __m256 operand[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        operand[c] = _mm256_permutevar8x32_ps(Spread(column[c], piece, b), twice);
      }
#pragma GCC unroll 8
      for (int j = 0; j < J; ++j) {
        const __m256 code = CodeOf<8, false>(_mm256_xor_si256(Load(w + j * 32), middle), b);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) acc[j][c] = _mm256_fmadd_ps(code, operand[c], acc[j][c]);
      }
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
    for (int j = 0; j < J; ++j) sums[c][(j0 + j) / 4][(j0 + j) % 4] = acc[j][c];
  }
}

template <int kBits>
void Columns(int count, const uint8_t* w, int64_t tiles, const uint8_t* const* x, int64_t x_offset,
             __m256 (*sums)[2][4]) {
  ByColumns<kBits == 8 ? 8 : 4>(
      count, [&]<int J, int C>(int j) __attribute__((always_inline)) {
        if constexpr (kBits == 8) {
          Bytes<J, C>(w, tiles, x, x_offset, j, sums);
        } else {
          SmallCodes<kBits, J, C>(w, tiles, x, x_offset, j, sums);
        }
      });
}

[[gnu::always_inline]] inline __m256 Combine(__m256 a, __m256 b) {
  return _mm256_add_ps(
      _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b))),
      _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b))));
}

// sums[half][j] -> rows 0..7 and 8..15 in order, each (t0 + t2) + (t1 + t3).
template <int kBits>
void Rows(const __m256 (&sums)[2][4], __m256* rows) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  if constexpr (kBits == 8) {
    __m256 quad[2];
    for (int half = 0; half < 2; ++half) {
      const __m256* s = sums[half];
      quad[half] = Combine(_mm256_add_ps(_mm256_permute2f128_ps(s[0], s[1], 0x20),
                                         _mm256_permute2f128_ps(s[0], s[1], 0x31)),
                           _mm256_add_ps(_mm256_permute2f128_ps(s[2], s[3], 0x20),
                                         _mm256_permute2f128_ps(s[2], s[3], 0x31)));
    }
    rows[0] = _mm256_shuffle_ps(quad[0], quad[1], 0x88);
    rows[1] = _mm256_shuffle_ps(quad[0], quad[1], 0xdd);
  } else {
    for (int half = 0; half < 2; ++half) {
      const __m256* s = sums[half];
      rows[half] =
          Combine(_mm256_add_ps(_mm256_unpacklo_ps(s[0], s[1]), _mm256_unpackhi_ps(s[0], s[1])),
                  _mm256_add_ps(_mm256_unpacklo_ps(s[2], s[3]), _mm256_unpackhi_ps(s[2], s[3])));
    }
  }
  rows[0] = _mm256_permutevar8x32_ps(rows[0], order);
  rows[1] = _mm256_permutevar8x32_ps(rows[1], order);
}

template <int kBits>
void Gemm(const BlockGemmArgs& args) {
  const int64_t tiles = args.k16s / kTilePieces;
  const __m256 middle = _mm256_set1_ps(1 << (kBits - 1));
  for (int b = 0; b < args.blocks; ++b) {
    __m256 out[kNarrowColumns][2];
    for (int c = 0; c < args.columns; ++c) out[c][0] = out[c][1] = _mm256_setzero_ps();
    for (int64_t begin = 0; begin < tiles; begin += args.flush_tiles) {
      const int64_t left = tiles - begin;
      const int64_t count = left < args.flush_tiles ? left : args.flush_tiles;
      const uint8_t* w = args.weights[b] + begin * kBits * 128;
      FetchWeights(w, count * kBits * 128);
      __m256 sums[kNarrowColumns][2][4];
      for (int c = 0; c < args.columns; c += kColumnsAtOnce) {
        const int some = args.columns - c < kColumnsAtOnce ? args.columns - c : kColumnsAtOnce;
        Columns<kBits>(some, w, count, args.x + c, begin * kTilePieces * kOperand, sums + c);
      }
      const int64_t at = begin / args.group_tiles * args.scale_stride;
      FetchScales(args, b, at);
      const bool symmetric = args.offsets[b] == nullptr;
      __m256 scale[2], offset[2];
      for (int half = 0; half < 2; ++half) {
        scale[half] = Widen(args.scales[b] + at + half * 8);
        // w = scale u - offset = scale (u - middle) - (offset - middle scale)
        offset[half] = symmetric ? scale[half]
                                 : _mm256_fnmadd_ps(middle, scale[half],
                                                    Widen(args.offsets[b] + at + half * 8));
      }
      for (int c = 0; c < args.columns; ++c) {
        __m256 rows[2];
        Rows<kBits>(sums[c], rows);
        out[c][0] = _mm256_fmadd_ps(rows[0], scale[0], out[c][0]);
        out[c][1] = _mm256_fmadd_ps(rows[1], scale[1], out[c][1]);
        if (symmetric) continue;
        const auto* tile_sums =
            reinterpret_cast<const float*>(args.x[c] + tiles * kTilePieces * kOperand) + begin;
        float sum = 0;
        for (int64_t tile = 0; tile < count; ++tile) sum += tile_sums[tile];
        out[c][0] = _mm256_fnmadd_ps(offset[0], _mm256_set1_ps(sum), out[c][0]);
        out[c][1] = _mm256_fnmadd_ps(offset[1], _mm256_set1_ps(sum), out[c][1]);
      }
    }
    for (int c = 0; c < args.columns; ++c) StoreRows(args, b, c, out[c][0], out[c][1]);
  }
}

// Reorders the operand of the bf16 kernel, {2t, 2t+8, 2t+1, 2t+9} for t = 0..3, in place, and
// appends the sums of tiles.
void Summed(int64_t k16s, uint8_t* out) {
  auto* sums = reinterpret_cast<float*>(out + k16s * kOperand);
  for (int64_t tile = 0; tile < k16s / kTilePieces; ++tile) {
    __m128 sum = _mm_setzero_ps();
    for (int i = 0; i < kTilePieces; ++i) {
      auto* piece = reinterpret_cast<float*>(out + (tile * kTilePieces + i) * kOperand);
      __m128 t0 = _mm_load_ps(piece), t1 = _mm_load_ps(piece + 4), t2 = _mm_load_ps(piece + 8),
             t3 = _mm_load_ps(piece + 12);
      sum = _mm_add_ps(sum, _mm_add_ps(_mm_add_ps(t0, t1), _mm_add_ps(t2, t3)));
      _MM_TRANSPOSE4_PS(t0, t1, t2, t3);
      _mm_store_ps(piece, t0);
      _mm_store_ps(piece + 4, t1);
      _mm_store_ps(piece + 8, t2);
      _mm_store_ps(piece + 12, t3);
    }
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    sums[tile] = _mm_cvtss_f32(_mm_add_ss(sum, _mm_shuffle_ps(sum, sum, 0x55)));
  }
}

}  // namespace

void BlockGemmFloatW8Avx2(const BlockGemmArgs& args) { Gemm<8>(args); }
void BlockGemmFloatW4Avx2(const BlockGemmArgs& args) { Gemm<4>(args); }
void BlockGemmFloatW3Avx2(const BlockGemmArgs& args) { Gemm<3>(args); }
void BlockGemmFloatW2Avx2(const BlockGemmArgs& args) { Gemm<2>(args); }

void PackSummedF32Avx2(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  PackF32Avx2(x, valid, k16s, out);
  Summed(k16s, out);
}
void PackSummedRoundedAvx2(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  PackRoundedAvx2(x, valid, k16s, out);
  Summed(k16s, out);
}

}  // namespace moert::kernels
#endif
