// The codes of quantized weights, read back from fragment order (docs/reference/layout.md) a tile
// at a time.
#ifndef MOERT_KERNELS_REFERENCE_CODES_H_
#define MOERT_KERNELS_REFERENCE_CODES_H_

#include <cstdint>

namespace moert::kernels {

/// One tile: 16 output channels x 64 input channels.
struct TileCodes {
  uint8_t at[16][64];
};

/// `bits` is 8 (also fp8), 4, 3 or 2; the tile is bits * 128 bytes.
TileCodes ReadTile(int bits, const uint8_t* tile);

/// Place of a bf16 weight inside a packed matrix (docs/reference/layout.md): index, in bf16
/// elements from the start of a row block, of (row, k): row in [0, 16), any k.
///
/// A piece of 16 x 16 weights is the A operand of a tensor core's m16n8k16 product: lane g * 4 + t
/// (g < 8, t < 4) holds rows g and g + 8 of channels 2t, 2t+1, 2t+8 and 2t+9, as four registers of
/// two: {g; 2t}, {g+8; 2t}, {g; 2t+8}, {g+8; 2t+8}.
constexpr int64_t FragmentIndex(int64_t row, int64_t k) {
  const int64_t piece = k / 16;
  const int64_t in_piece = k % 16;
  const int64_t lane = (row % 8) * 4 + (in_piece % 8) / 2;
  const int64_t reg = (in_piece / 8) * 2 + row / 8;
  return piece * 256 + lane * 8 + reg * 2 + in_piece % 2;
}

}  // namespace moert::kernels

#endif  // MOERT_KERNELS_REFERENCE_CODES_H_
