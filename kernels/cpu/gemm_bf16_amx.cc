// bf16 weights x bf16 activations, AMX (tdpbf16ps). Two pieces at a time become [pair of input
// channels][row][2] by shuffles of words, a step ahead of their use, since stores are not forwarded
// to tile loads. Activations are those of the vdpbf16ps kernel: the channels in order.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/amx_tile.h"
#include "kernels/cpu/block_gemm.h"

namespace moert::kernels {
namespace {

constexpr int64_t kAhead = 8192;  // bytes of weights fetched ahead
constexpr int64_t kStepBytes = 2 * kBf16PieceBytes;

[[gnu::always_inline]] inline __m512i Load(const uint8_t* p) { return _mm512_load_si512(p); }

// Four registers of four 128-bit lanes -> their lane i, as row i of a tile.
[[gnu::always_inline]] inline void StoreLanes(__m512i a, __m512i b, __m512i c, __m512i d,
                                              uint8_t* to) {
  const __m512i ab = _mm512_shuffle_i32x4(a, b, 0x44), ab_high = _mm512_shuffle_i32x4(a, b, 0xee);
  const __m512i cd = _mm512_shuffle_i32x4(c, d, 0x44), cd_high = _mm512_shuffle_i32x4(c, d, 0xee);
  _mm512_store_si512(to, _mm512_shuffle_i32x4(ab, cd, 0x88));
  _mm512_store_si512(to + 64, _mm512_shuffle_i32x4(ab, cd, 0xdd));
  _mm512_store_si512(to + 128, _mm512_shuffle_i32x4(ab_high, cd_high, 0x88));
  _mm512_store_si512(to + 192, _mm512_shuffle_i32x4(ab_high, cd_high, 0xdd));
}

// Two pieces -> [16 pairs][16 rows][2]; of each 64 bytes, a 128-bit lane has pairs t and t + 4 of
// rows g and g + 8.
[[gnu::always_inline]] inline void Convert(const uint8_t* w, uint8_t* to) {
#pragma GCC unroll 16
  for (int64_t line = 0; line < kStepBytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(w + kAhead + line), _MM_HINT_T0);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    __m512i low[4], high[4];  // pairs 0..3 and 4..7 of rows 2j, 2j + 8, 2j + 1, 2j + 9
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m512i even = Load(w + i * kBf16PieceBytes + j * 128);
      const __m512i odd = Load(w + i * kBf16PieceBytes + j * 128 + 64);
      low[j] = _mm512_unpacklo_epi64(even, odd);
      high[j] = _mm512_unpackhi_epi64(even, odd);
    }
    StoreLanes(low[0], low[1], low[2], low[3], to + i * 512);
    StoreLanes(high[0], high[1], high[2], high[3], to + i * 512 + 256);
  }
}

}  // namespace

void BlockGemmBf16Amx(const BlockGemmArgs& args) {
  const int64_t steps = args.k16s / 2;
  const int64_t stride = args.columns > 1 ? args.x[1] - args.x[0] : 0;
  const bool halves = args.columns > kAmxRows;
  const bool blocks = args.blocks > 1;
  alignas(64) uint8_t ring[kMaxBlocks * 2 * kAmxBytes];
  const AmxTiles staged = AmxTilesOf(args, ring, kAmxBytes);
  AmxBegin(args.columns);
  const auto convert = [&](int64_t step) __attribute__((always_inline)) {
    Convert(args.weights[0] + step * kStepBytes, TileAt(staged, step, 0));
    if (blocks) Convert(args.weights[1] + step * kStepBytes, TileAt(staged, step, 1));
  };
  const int64_t converted = args.tiles_kept ? 0 : steps;
  if (converted > 0) convert(0);
  for (int64_t step = 0; step < steps; ++step) {
    if (step + 1 < converted) convert(step + 1);
    AmxStep<AmxDot::kBf16>(args.x[0] + step * 64, stride, halves, TileAt(staged, step, 0),
                           TileAt(staged, step, 1), blocks);
  }
  AmxStoreSums(halves, blocks, args.out);
  AmxEnd();
  // The position of row r of the block.
  const __m512i place = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  for (int b = 0; b < args.blocks; ++b) {
    for (int c = 0; c < args.columns; ++c) {
      float* const row = args.out + (b * kMaxColumns + c) * kBlockRows;
      _mm512_store_ps(row, _mm512_permutexvar_ps(place, _mm512_load_ps(row)));
    }
  }
}

}  // namespace moert::kernels
#endif
