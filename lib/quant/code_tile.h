// Tiles of codes: one byte per code before packing, and the bytes of a record.
#ifndef MOERT_LIB_QUANT_CODE_TILE_H_
#define MOERT_LIB_QUANT_CODE_TILE_H_

#include <cstdint>

#include "moert/scheme.h"

namespace moert {

/// Codes of 16 rows and 64 k; those past the end of a matrix are 0.
using CodeTile = uint8_t[kRowTile][kKTile];

constexpr int64_t CodeTileBytes(int bits) { return kRowTile * kKTile * bits / 8; }

/// Writes CodeTileBytes(bits) at `out`. Codes are below 2^bits.
void PackCodeTile(int bits, const CodeTile& codes, uint8_t* out);
/// One code of a packed tile.
uint8_t PackedCode(int bits, int64_t row, int64_t k, const uint8_t* tile);

/// Whether all codes are below 2^bits and, for e4m3, numbers (0x7f and 0xff are none).
bool LegalCodes(const Scheme& scheme, const CodeTile& codes);

}  // namespace moert

#endif  // MOERT_LIB_QUANT_CODE_TILE_H_
