// AMX tiles for the kernels of one ISA: only for files named *_amx.cc. Everything here is inlined
// by force and has internal linkage, so nothing of it can be linked into other files' code.
//
// A product takes tokens as the rows of A and output channels as the columns of B, so that a row of
// the sums is one token's 16 channels. The tile registers: 0..3 sums [row block][half of the
// columns], 4 and 5 activations [half], 6 and 7 weights [row block].
//
// Inline assembly, because the compilers' intrinsics for tile loads do not declare that they read
// memory.
#ifndef MOERT_KERNELS_CPU_AMX_TILE_H_
#define MOERT_KERNELS_CPU_AMX_TILE_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/block_gemm.h"

namespace moert::kernels {

constexpr int kAmxRows = 16;         // of a tile: tokens, or quads or pairs of input channels
constexpr int64_t kAmxBytes = 1024;  // 16 rows of 64 bytes

// The operand of ldtilecfg.
struct alignas(64) AmxConfig {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

// Sizes the tiles for `columns` (1..32) columns and zeroes the sums.
[[gnu::always_inline]] static inline void AmxBegin(int columns) {
  AmxConfig config = {};
  config.palette = 1;
  const int first = columns < kAmxRows ? columns : kAmxRows;
  const int rows[8] = {first, columns - first,  // of the sums of block 0
                       first, columns - first,  // and 1
                       first, columns - first, kAmxRows, kAmxRows};
  for (int i = 0; i < 8; ++i) {
    if (rows[i] == 0) continue;  // not used: using it would trap
    config.rows[i] = static_cast<uint8_t>(rows[i]);
    config.row_bytes[i] = 64;
  }
  asm volatile("ldtilecfg %0" ::"m"(config));
}

// Where the tiles of each row block are stored: in a ring of two, or in the caller's memory for all
// of them.
struct AmxTiles {
  uint8_t* first[kMaxBlocks];
  int64_t mask;   // of tile numbers
  int64_t bytes;  // of the tiles made of a row block at once
};
[[gnu::always_inline]] static inline AmxTiles AmxTilesOf(const BlockGemmArgs& args, uint8_t* ring,
                                                         int64_t bytes) {
  if (args.tiles[0] != nullptr) return {{args.tiles[0], args.tiles[1]}, -1, bytes};
  return {{ring, ring + 2 * bytes}, 1, bytes};
}
[[gnu::always_inline]] static inline uint8_t* TileAt(const AmxTiles& tiles, int64_t tile,
                                                     int block) {
  return tiles.first[block] + (tile & tiles.mask) * tiles.bytes;
}

// Releases the tile state, as the thread may be the caller's.
[[gnu::always_inline]] static inline void AmxEnd() { asm volatile("tilerelease" ::: "memory"); }

template <int kTile>
[[gnu::always_inline]] static inline void AmxLoad(const void* rows, int64_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(rows), "r"(stride) : "memory");
}

template <int kTile>
[[gnu::always_inline]] static inline void AmxStore(void* rows) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(rows), "r"(int64_t{64})
               : "memory");
}

template <int kTile>
[[gnu::always_inline]] static inline void AmxZero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}

// sums += activations x weights, by the kind of operands.
enum class AmxDot { kSigned, kUnsignedWeights, kBf16 };

template <AmxDot kDot, int kSums, int kX, int kW>
[[gnu::always_inline]] static inline void AmxMultiply() {
  if constexpr (kDot == AmxDot::kSigned) {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kX), "i"(kW));
  } else if constexpr (kDot == AmxDot::kUnsignedWeights) {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kX), "i"(kW));
  } else {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kX), "i"(kW));
  }
}

// One step in k for all blocks and columns: multiplies 64 bytes of every row of x (rows begin at
// `x`, `stride` bytes apart) by the weight tiles at w0 and w1.
template <AmxDot kDot>
[[gnu::always_inline]] static inline void AmxStep(const uint8_t* x, int64_t stride, bool halves,
                                                  const uint8_t* w0, const uint8_t* w1,
                                                  bool blocks) {
  AmxLoad<6>(w0, 64);
  AmxLoad<4>(x, stride);
  AmxMultiply<kDot, 0, 4, 6>();
  if (halves) {
    AmxLoad<5>(x + kAmxRows * stride, stride);
    AmxMultiply<kDot, 1, 5, 6>();
  }
  if (blocks) {
    AmxLoad<7>(w1, 64);
    AmxMultiply<kDot, 2, 4, 7>();
    if (halves) AmxMultiply<kDot, 3, 5, 7>();
  }
}

// Stores the sums as [block][kMaxColumns][16] dwords.
[[gnu::always_inline]] static inline void AmxStoreSums(bool halves, bool blocks, void* to) {
  auto* out = static_cast<uint8_t*>(to);
  constexpr int64_t kBlock = kMaxColumns * kBlockRows * 4;
  AmxStore<0>(out);
  if (halves) AmxStore<1>(out + kAmxBytes);
  if (blocks) AmxStore<2>(out + kBlock);
  if (halves && blocks) AmxStore<3>(out + kBlock + kAmxBytes);
}

[[gnu::always_inline]] static inline void AmxZeroSums(bool halves, bool blocks) {
  AmxZero<0>();
  if (halves) AmxZero<1>();
  if (blocks) AmxZero<2>();
  if (halves && blocks) AmxZero<3>();
}

[[gnu::always_inline]] static inline void Store(uint8_t* to, __m512i v) {
  _mm512_store_si512(to, v);
}

// Kernels of quantized weights keep the rows of a block in the order that their shuffles give until
// the end. RowAt: the row at each position of a tile's row; PlaceOf: the position of each row.
template <int kBits>
[[gnu::always_inline]] static inline __m512i RowAt() {
  return kBits == 8 ? _mm512_setr_epi32(0, 8, 2, 10, 1, 9, 3, 11, 4, 12, 6, 14, 5, 13, 7, 15)
                    : _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
}
template <int kBits>
[[gnu::always_inline]] static inline __m512i PlaceOf() {
  return kBits == 8 ? _mm512_setr_epi32(0, 4, 2, 6, 8, 12, 10, 14, 1, 5, 3, 7, 9, 13, 11, 15)
                    : _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
}

// Puts the sums of all blocks and columns back in the order of rows.
template <int kBits>
[[gnu::always_inline]] static inline void AmxRestoreRows(const BlockGemmArgs& args) {
  const __m512i place = PlaceOf<kBits>();
  for (int b = 0; b < args.blocks; ++b) {
    for (int c = 0; c < args.columns; ++c) {
      float* const row = args.out + (b * kMaxColumns + c) * kBlockRows;
      _mm512_store_ps(row, _mm512_permutexvar_ps(place, _mm512_load_ps(row)));
    }
  }
}

}  // namespace moert::kernels

#endif  // MOERT_KERNELS_CPU_AMX_TILE_H_
