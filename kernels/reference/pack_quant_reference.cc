// Quantization of activation rows, as every kernel set does it: scale = max |x| / limit over the
// channels that share it, code = x * (limit / max |x|) rounded to nearest even.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/bf16.h"
#include "kernels/cpu/block_gemm.h"
#include "quant/f8_group.h"

namespace moert::kernels {
namespace {

// Below this the inverse could overflow; such a row counts as zero.
constexpr float kSmallestMaximum = 1e-30f;

struct Range {
  float scale = 0;
  float inverse = 0;
};

Range RangeOf(const float* x, int64_t count, float limit) {
  float maximum = 0;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    finite = finite && std::isfinite(x[i]);
    maximum = std::max(maximum, std::fabs(x[i]));
  }
  if (!finite) return {std::numeric_limits<float>::quiet_NaN(), 0};
  if (maximum < kSmallestMaximum) return {};
  return {maximum / limit, limit / maximum};
}

int8_t CodeOf(float x, const Range& range, float limit) {
  if (range.inverse == 0) return 0;
  return static_cast<int8_t>(std::max(-limit, std::min(limit, std::nearbyint(x * range.inverse))));
}

// `group_tiles` 0: all tiles.
void PackInt(const float* x, int64_t valid, int64_t k16s, int64_t group_tiles, float limit,
             uint8_t* out) {
  const int64_t tiles = k16s / kTilePieces;
  if (group_tiles == 0) group_tiles = tiles;
  auto* codes = reinterpret_cast<int8_t*>(out);
  Range range;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    if (tile % group_tiles == 0) {
      const int64_t first = tile * kTileK;
      range =
          RangeOf(x + first, std::clamp<int64_t>(valid - first, 0, group_tiles * kTileK), limit);
    }
    TileScale scale = {range.scale, 0};
    for (int k = 0; k < kTileK; ++k) {
      const int64_t channel = tile * kTileK + k;
      const int8_t code = channel < valid ? CodeOf(x[channel], range, limit) : int8_t{0};
      codes[tile * kTileK + k / 16 * 16 + k % 8 / 2 * 4 + k % 2 * 2 + k % 16 / 8] = code;
      scale.sum += code;
    }
    std::memcpy(out + tiles * kTileK + tile * static_cast<int64_t>(sizeof(scale)), &scale,
                sizeof(scale));
  }
}

}  // namespace

void PackInt8GroupReference(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  PackInt(x, valid, k16s, kInt8GroupTiles, 127, out);
}
void PackInt8TokenReference(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  PackInt(x, valid, k16s, 0, 127, out);
}
void PackInt4GroupReference(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  PackInt(x, valid, k16s, kInt8GroupTiles, 7, out);
}
void PackInt4TokenReference(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  PackInt(x, valid, k16s, 0, 7, out);
}

// fp32 values on the e4m3 grid in channel order, then TileScale[tiles].
void PackF8TokenReference(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  constexpr float kLimit = 448;
  const int64_t tiles = k16s / kTilePieces;
  const Range range = RangeOf(x, valid, kLimit);
  for (int64_t k = 0; k < tiles * kTileK; ++k) {
    const float value = k < valid && range.inverse != 0
                            ? NearestF8(std::clamp(x[k] * range.inverse, -kLimit, kLimit))
                            : 0.0f;
    std::memcpy(out + k * 4, &value, 4);
  }
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const TileScale scale = {range.scale, 0};
    std::memcpy(out + tiles * kTileK * 4 + tile * static_cast<int64_t>(sizeof(scale)), &scale,
                sizeof(scale));
  }
}

}  // namespace moert::kernels
