// bf16 activations x imported schemes, AMX (tdpbf16ps). Two pieces at a time become a tile of [16
// pairs][16 rows][2] bf16, a step ahead of their use, since stores are not forwarded to tile loads.
// e2m1 codes are stored times their scale, a product that bf16 holds, so their sums run over all of
// k; sums of int4 and e4m3 are scaled group by group.
//
// Rows of a block are kept in the order that the shuffles give (RowAt) until the end.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/amx_tile.h"
#include "kernels/cpu/block_gemm.h"
#include "kernels/cpu/imported_avx512.h"
#include "kernels/cpu/quantized_avx512.h"

namespace moert::kernels {
namespace {

constexpr int64_t kXStepBytes = 64;  // of a row of x: 32 channels in order

template <ImportedCodes kCodes>
constexpr int kBitsOf = kCodes == ImportedCodes::kE4M3 ? 8 : 4;

// The element at which the scales of a piece's group begin. Padding takes those of the last group,
// times zero.
[[gnu::always_inline]] inline int64_t GroupAt(const BlockGemmArgs& args, int64_t piece) {
  const int64_t group = piece / args.group_k16s;
  return (group < args.groups ? group : args.groups - 1) * args.scale_stride;
}

// Zeros and scales of a group's codes, by row, in the order of a tile.
struct Group {
  __m512i zeros;      // int4: in every byte of a word
  __m512 scales;      // e2m1
  __m512i exponents;  // e2m1: added to the exponents of both halves of a word
  bool powers;        // whether scales are powers of two and all products are normal
};

template <ImportedCodes kCodes, bool kZeros>
[[gnu::always_inline]] inline void ReadGroup(const BlockGemmArgs& args, int b, int64_t at,
                                             Group* group) {
  const __m512i order = RowAt<4>();
  if constexpr (kZeros) {
    const __m512i bytes = _mm512_broadcast_i32x4(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(args.zeros[b] + at)));
    group->zeros =
        _mm512_shuffle_epi8(bytes, _mm512_mullo_epi32(order, _mm512_set1_epi32(0x01010101)));
  } else if constexpr (kCodes == ImportedCodes::kE2M1) {
    group->powers = false;
    if (args.scale_form == kScaleE8M0) {
      const __m128i e = _mm_loadu_si128(reinterpret_cast<const __m128i*>(args.raw_scales[b] + at));
      group->powers = _mm_cmple_epu8_mask(_mm_sub_epi8(e, _mm_set1_epi8(2)),
                                          _mm_set1_epi8(static_cast<char>(250))) == 0xffff;
      const __m512i both = _mm512_shuffle_epi8(
          _mm512_broadcast_i32x4(e),
          _mm512_or_si512(_mm512_mullo_epi32(order, _mm512_set1_epi32(0x00010001)),
                          _mm512_set1_epi32(static_cast<int>(0x80008000u))));
      group->exponents = _mm512_slli_epi16(_mm512_sub_epi16(both, _mm512_set1_epi16(127)), 7);
    }
    if (!group->powers) {
      group->scales =
          _mm512_permutexvar_ps(order, ImportedScales(args.raw_scales[b], args.scale_form, at));
    }
  }
}

// bf16 pairs times the scales of their rows.
template <bool kPowers>
[[gnu::always_inline]] inline __m512i Scaled(__m512i pairs, const Group& group) {
  if constexpr (kPowers) {
    const __mmask32 some = _mm512_test_epi16_mask(pairs, _mm512_set1_epi16(0x7fff));
    return _mm512_mask_add_epi16(pairs, some, pairs, group.exponents);
  }
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
  const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, high));
  const __m512i first =
      _mm512_srli_epi32(_mm512_castps_si512(_mm512_mul_ps(even, group.scales)), 16);
  // first | (second & high)
  return _mm512_ternarylogic_epi32(first, _mm512_castps_si512(_mm512_mul_ps(odd, group.scales)),
                                   high, 0xf8);
}

// Quad t of all rows -> pairs t (channels 2t, 2t + 1) and t + 4 (2t + 8, 2t + 9).
template <ImportedCodes kCodes, bool kZeros, bool kPowers>
[[gnu::always_inline]] inline void StorePairs(__m512i quad, __m512i table, const Group& group,
                                              uint8_t* to) {
  if constexpr (kCodes == ImportedCodes::kE4M3) {
    Store(to, ExpandF8<false>(quad, table));
    Store(to + 256, ExpandF8<true>(quad, table));
    return;
  }
  if constexpr (kZeros) {
    quad = _mm512_sub_epi8(_mm512_and_si512(quad, _mm512_set1_epi8(15)), group.zeros);
  }
  __m512i low = _mm512_permutexvar_epi16(quad, table);
  __m512i high = _mm512_permutexvar_epi16(_mm512_srli_epi16(quad, 8), table);
  if constexpr (kCodes == ImportedCodes::kE2M1) {
    low = Scaled<kPowers>(low, group);
    high = Scaled<kPowers>(high, group);
  }
  Store(to, low);
  Store(to + 256, high);
}

template <ImportedCodes kCodes, bool kZeros, bool kPowers>
[[gnu::always_inline]] inline void ConvertPiece(const uint8_t* w, __m512i table, const Group& group,
                                                uint8_t* to) {
  __m512i quads[4];
  if constexpr (kCodes == ImportedCodes::kE4M3) {
    // Words of rows g and g + 8 alternate; a load holds two g, a 128-bit lane two quads.
    const __m512i q0 = Load(w), q1 = Load(w + 64), q2 = Load(w + 128), q3 = Load(w + 192);
    const __m512i even01 = _mm512_unpacklo_epi64(q0, q1), odd01 = _mm512_unpackhi_epi64(q0, q1);
    const __m512i even23 = _mm512_unpacklo_epi64(q2, q3), odd23 = _mm512_unpackhi_epi64(q2, q3);
    quads[0] = _mm512_shuffle_i32x4(even01, even23, 0x88);
    quads[1] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
    quads[2] = _mm512_shuffle_i32x4(even01, even23, 0xdd);
    quads[3] = _mm512_shuffle_i32x4(odd01, odd23, 0xdd);
  } else {
    // Words of rows g (low nibbles) and g + 8: g = 0..3 in `a`, 4..7 in `b`.
    const __m512i a = Load(w), b = Load(w + 64);
    const __m512i first = _mm512_unpacklo_epi32(a, b), second = _mm512_unpackhi_epi32(a, b);
    const __m512i first_high = _mm512_srli_epi16(first, 4);
    const __m512i second_high = _mm512_srli_epi16(second, 4);
    quads[0] = _mm512_unpacklo_epi64(first, first_high);
    quads[1] = _mm512_unpackhi_epi64(first, first_high);
    quads[2] = _mm512_unpacklo_epi64(second, second_high);
    quads[3] = _mm512_unpackhi_epi64(second, second_high);
  }
#pragma GCC unroll 4
  for (int t = 0; t < 4; ++t)
    StorePairs<kCodes, kZeros, kPowers>(quads[t], table, group, to + t * 64);
}

// Pieces 2 step and 2 step + 1 of row block b.
template <ImportedCodes kCodes, bool kZeros>
[[gnu::always_inline]] inline void Convert(const BlockGemmArgs& args, int b, int64_t step,
                                           __m512i table, uint8_t* to) {
  constexpr int64_t kPieceBytes = kBitsOf<kCodes> * 32;
  const uint8_t* w = args.weights[b] + 2 * step * kPieceBytes;
  Group group;
  int64_t last = -1;
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    FetchPiece<kBitsOf<kCodes>>(w + i * kPieceBytes);
    if constexpr (kZeros || kCodes == ImportedCodes::kE2M1) {
      const int64_t at = GroupAt(args, 2 * step + i);
      if (at != last) {
        FetchImportedScales(args, b, at);
        ReadGroup<kCodes, kZeros>(args, b, at, &group);
      }
      last = at;
    }
    if (kCodes == ImportedCodes::kE2M1 && group.powers) {
      ConvertPiece<kCodes, kZeros, true>(w + i * kPieceBytes, table, group, to + i * 512);
    } else {
      ConvertPiece<kCodes, kZeros, false>(w + i * kPieceBytes, table, group, to + i * 512);
    }
  }
}

// Adds the scaled sums of the group of `piece` to those in args.out.
template <int kBits>
[[gnu::always_inline]] inline void Flush(const BlockGemmArgs& args, int64_t piece,
                                         const float* sums) {
  const __m512i order = RowAt<kBits>();
  const int64_t at = GroupAt(args, piece);
  const bool first = piece < args.group_k16s;
  const int columns = args.columns;
  for (int b = 0; b < args.blocks; ++b) {
    FetchImportedScales(args, b, at);
    const __m512 scale =
        _mm512_permutexvar_ps(order, ImportedScales(args.raw_scales[b], args.scale_form, at));
    const float* const from = sums + b * kMaxColumns * kBlockRows;
    float* const to = args.out + b * kMaxColumns * kBlockRows;
    if (first) {
      for (int c = 0; c < columns * kBlockRows; c += kBlockRows) {
        _mm512_store_ps(to + c, _mm512_mul_ps(_mm512_load_ps(from + c), scale));
      }
      continue;
    }
    for (int c = 0; c < columns * kBlockRows; c += kBlockRows) {
      _mm512_store_ps(to + c,
                      _mm512_fmadd_ps(_mm512_load_ps(from + c), scale, _mm512_load_ps(to + c)));
    }
  }
}

template <int kBits>
void Finish(const BlockGemmArgs& args) {
  for (int b = 0; b < args.blocks; ++b) {
    if (args.matrix_scale[b] == nullptr) continue;
    const __m512 scale = _mm512_set1_ps(*args.matrix_scale[b]);
    for (int c = 0; c < args.columns; ++c) {
      float* const row = args.out + (b * kMaxColumns + c) * kBlockRows;
      _mm512_store_ps(row, _mm512_mul_ps(_mm512_load_ps(row), scale));
    }
  }
  AmxRestoreRows<kBits>(args);
}

template <ImportedCodes kCodes, bool kZeros = false>
void Gemm(const BlockGemmArgs& args) {
  constexpr bool kByGroups = kCodes != ImportedCodes::kE2M1;
  const __m512i table = ImportedTable<kCodes, kZeros>();
  const int64_t steps = args.k16s / 2;
  const int64_t group_steps = kByGroups ? args.group_k16s / 2 : steps;
  const int64_t stride = args.columns > 1 ? args.x[1] - args.x[0] : 0;
  const bool halves = args.columns > kAmxRows;
  const bool blocks = args.blocks > 1;
  alignas(64) uint8_t ring[kMaxBlocks * 2 * kAmxBytes];
  const AmxTiles staged = AmxTilesOf(args, ring, kAmxBytes);
  alignas(64) float sums[kMaxBlocks * kMaxColumns * kBlockRows];
  AmxBegin(args.columns);
  const auto convert = [&](int64_t step) __attribute__((always_inline)) {
    Convert<kCodes, kZeros>(args, 0, step, table, TileAt(staged, step, 0));
    if (blocks) Convert<kCodes, kZeros>(args, 1, step, table, TileAt(staged, step, 1));
  };
  const int64_t converted = args.tiles_kept ? 0 : steps;
  if (converted > 0) convert(0);
  int64_t pending = -1;  // a piece of the group whose sums are stored but not added yet: a step
                         // later they can be read without waiting
  int64_t in_group = 0;
  for (int64_t step = 0; step < steps; ++step) {
    if (step + 1 < converted) convert(step + 1);
    AmxStep<AmxDot::kBf16>(args.x[0] + step * kXStepBytes, stride, halves, TileAt(staged, step, 0),
                           TileAt(staged, step, 1), blocks);
    if constexpr (!kByGroups) continue;
    if (pending >= 0) Flush<kBitsOf<kCodes>>(args, pending, sums);
    pending = -1;
    if (++in_group == group_steps || step + 1 == steps) {
      AmxStoreSums(halves, blocks, sums);
      AmxZeroSums(halves, blocks);
      pending = 2 * step;
      in_group = 0;
    }
  }
  if constexpr (!kByGroups) AmxStoreSums(halves, blocks, args.out);
  AmxEnd();
  if constexpr (kByGroups) Flush<kBitsOf<kCodes>>(args, pending, sums);
  Finish<kBitsOf<kCodes>>(args);
}

}  // namespace

void BlockGemmImportedW4Amx(const BlockGemmArgs& args) {
  return args.zeros[0] != nullptr ? Gemm<ImportedCodes::kInt4, true>(args)
                                  : Gemm<ImportedCodes::kInt4>(args);
}
void BlockGemmImportedF4Amx(const BlockGemmArgs& args) { Gemm<ImportedCodes::kE2M1>(args); }
void BlockGemmImportedF8Amx(const BlockGemmArgs& args) { Gemm<ImportedCodes::kE4M3>(args); }

}  // namespace moert::kernels
#endif
