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

}  // namespace moert::kernels

#endif  // MOERT_KERNELS_REFERENCE_CODES_H_
