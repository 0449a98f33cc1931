#include "quant/quantized_matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "base/errors.h"
#include "fmt/format.h"

namespace moert {
namespace {

// Where the code of (row, k), both inside a tile of 16 rows x 64 k, lies in that tile's bytes: the
// byte and the lowest bit. 3-bit codes are two low bits in the 2-bit plane and a third in a plane
// of its own.
//
// A word is a little-endian u32 of one lane; byte b of it holds k = {2t, 2t+8, 2t+1, 2t+9}[b] of a
// k16.
struct Place {
  int64_t byte;
  int bit;
};

constexpr int64_t kLanes = 32;
constexpr float kMostZero = 16;  // GPTQ stores zeros less one
constexpr long kMostE8M0 = 250;  // above it a weight could overflow bf16

/// Byte inside a word that holds position k (0..15) of a k16, and the lane's t.
constexpr int ByteOfK(int64_t k) { return static_cast<int>((k % 2) * 2 + k / 8); }
constexpr int64_t LaneOf(int64_t row, int64_t k) { return (row % 8) * 4 + (k % 8) / 2; }

constexpr Place PlaceOf8(int64_t row, int64_t k) {
  const int64_t k16 = k / 16;
  return {((k16 * kLanes + LaneOf(row, k % 16)) * 2 + row / 8) * 4 + ByteOfK(k % 16), 0};
}
constexpr Place PlaceOf4(int64_t row, int64_t k) {
  const int64_t k16 = k / 16;
  return {(k16 * kLanes + LaneOf(row, k % 16)) * 4 + ByteOfK(k % 16),
          static_cast<int>(row / 8) * 4};
}
constexpr Place PlaceOf2(int64_t row, int64_t k) {
  const int64_t k32 = k / 32;
  const int field = static_cast<int>(2 * ((k % 32) / 16) + row / 8);
  return {(k32 * kLanes + LaneOf(row, k % 16)) * 4 + ByteOfK(k % 16), 2 * field};
}
constexpr int64_t kPlaneOffset3 = 2 * kLanes * 4;  // after the two 2-bit blocks of a k64
constexpr Place PlaceOfThirdBit(int64_t row, int64_t k) {
  return {kPlaneOffset3 + LaneOf(row, k % 16) * 4 + ByteOfK(k % 16),
          static_cast<int>(2 * (k / 16) + row / 8)};
}

// A whole tile of 4-bit codes at once: the two rows of a byte side by side.
void PackTile4(const uint8_t (*codes)[kKTile], uint8_t* tile) {
  for (int64_t k0 = 0; k0 < kKTile; k0 += 16) {
    for (int64_t g = 0; g < 8; ++g) {
      const uint8_t* low = codes[g] + k0;
      const uint8_t* high = codes[g + 8] + k0;
      for (int64_t t = 0; t < 8; t += 2, tile += 4) {
        tile[0] = static_cast<uint8_t>(low[t] | high[t] << 4);
        tile[1] = static_cast<uint8_t>(low[t + 8] | high[t + 8] << 4);
        tile[2] = static_cast<uint8_t>(low[t + 1] | high[t + 1] << 4);
        tile[3] = static_cast<uint8_t>(low[t + 9] | high[t + 9] << 4);
      }
    }
  }
}

template <int bits>
void PutCode(int64_t row, int64_t k, unsigned code, uint8_t* tile) {
  const auto put = [&](Place p, unsigned value) {
    tile[p.byte] = static_cast<uint8_t>(tile[p.byte] | (value << p.bit));
  };
  if constexpr (bits == 8) put(PlaceOf8(row, k), code);
  if constexpr (bits == 4) put(PlaceOf4(row, k), code);
  if constexpr (bits == 3) {
    put(PlaceOf2(row, k), code & 3);
    put(PlaceOfThirdBit(row, k), code >> 2);
  }
  if constexpr (bits == 2) put(PlaceOf2(row, k), code);
}

// `tile` is zeroed.
template <int bits>
void PackTile(const uint8_t (*codes)[kKTile], uint8_t* tile) {
  for (int64_t row = 0; row < kRowTile; ++row) {
    for (int64_t k = 0; k < kKTile; ++k) PutCode<bits>(row, k, codes[row][k], tile);
  }
}

void PackTiles(const MatrixLayout& m, const QuantizedMatrix& q, uint8_t* tile, int64_t tile_bytes) {
  uint8_t codes[kRowTile][kKTile];
  for (int64_t row0 = 0; row0 < m.padded_rows; row0 += kRowTile) {
    for (int64_t k0 = 0; k0 < m.padded_k; k0 += kKTile, tile += tile_bytes) {
      std::memset(codes, 0, sizeof(codes));
      const int64_t rows = std::min<int64_t>(kRowTile, m.rows - row0);
      const int64_t width = std::min<int64_t>(kKTile, m.k - k0);
      if (rows <= 0 || width <= 0) continue;
      for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(codes[r], q.codes.data() + (row0 + r) * m.k + k0, width);
      }
      switch (m.scheme.weight_bits) {
        case 8:
          PackTile<8>(codes, tile);
          break;
        case 4:
          PackTile4(codes, tile);
          break;
        case 3:
          PackTile<3>(codes, tile);
          break;
        case 2:
          PackTile<2>(codes, tile);
          break;
      }
    }
  }
}

unsigned GetCode(int bits, int64_t row, int64_t k, const uint8_t* tile) {
  const auto get = [&](Place p, unsigned mask) { return (tile[p.byte] >> p.bit) & mask; };
  switch (bits) {
    case 8:
      return get(PlaceOf8(row, k), 255);
    case 4:
      return get(PlaceOf4(row, k), 15);
    case 3:
      return get(PlaceOf2(row, k), 3) | (get(PlaceOfThirdBit(row, k), 1) << 2);
    default:
      return get(PlaceOf2(row, k), 3);
  }
}

// In blocks of a fixed size, which become vectors.
uint8_t Largest(const std::vector<uint8_t>& codes) {
  constexpr size_t kBlock = 64;
  uint8_t most[kBlock] = {};
  const size_t whole = codes.size() / kBlock * kBlock;
  for (size_t i = 0; i < whole; i += kBlock) {
    for (size_t j = 0; j < kBlock; ++j) most[j] = std::max(most[j], codes[i + j]);
  }
  for (size_t i = whole; i < codes.size(); ++i) most[0] = std::max(most[0], codes[i]);
  return *std::max_element(most, most + kBlock);
}

absl::Status CheckMatrix(const MatrixLayout& m, const QuantizedMatrix& q) {
  const auto bad = [&](const std::string& what) {
    return InvalidArgument("packing a {} x {} matrix as {}: {}", m.rows, m.k, m.scheme.Name(),
                           what);
  };
  if (m.scheme.is_bf16()) return bad("bf16 matrices have no codes");
  const size_t groups = static_cast<size_t>(q.rows * q.groups());
  if (q.rows != m.rows || q.k != m.k || q.group != m.group ||
      q.codes.size() != static_cast<size_t>(m.rows * m.k) || q.scales.size() != groups ||
      q.offsets.size() != (m.scheme.symmetric ? 0 : groups)) {
    return bad(fmt::format("was given {} x {} in groups of {} with {} codes, {} scales, {} offsets",
                           q.rows, q.k, q.group, q.codes.size(), q.scales.size(),
                           q.offsets.size()));
  }
  if (m.scheme.imported()) {
    for (size_t i = 0; i < groups; ++i) {
      const float scale = q.scales[i];
      const float stored = DecodeScale(m.scheme.scales, EncodeScale(m.scheme.scales, scale));
      const float zero = q.offsets.empty() ? 0 : q.offsets[i];
      if (std::isfinite(scale) && stored == scale && zero >= 0 && zero <= kMostZero &&
          zero == std::floor(zero)) {
        continue;
      }
      return bad(
          fmt::format("row {}, group {}: scale {} and zero {}: legal are a finite value of the "
                      "scheme's scale type and an integer in [0, {}]",
                      i / static_cast<size_t>(q.groups()), i % static_cast<size_t>(q.groups()),
                      scale, zero, kMostZero));
    }
    if (!std::isfinite(q.matrix_scale)) return bad("the scale of the matrix is not finite");
  }
  const unsigned limit = 1u << m.scheme.weight_bits;
  const uint8_t most = Largest(q.codes);  // says whether a slow pass has something to find
  for (size_t i = 0; (most >= limit || m.scheme.fp8) && i < q.codes.size(); ++i) {
    if (q.codes[i] >= limit) {
      return bad(fmt::format("code {} at row {}, k {}: must be in [0, {})", q.codes[i],
                             i / static_cast<size_t>(m.k), i % static_cast<size_t>(m.k), limit));
    }
    if (m.scheme.fp8 && (q.codes[i] & 0x7f) == 0x7f) {
      return bad(fmt::format("code {} at row {}, k {} is no number", q.codes[i],
                             i / static_cast<size_t>(m.k), i % static_cast<size_t>(m.k)));
    }
  }
  for (size_t i = 0; i < groups; ++i) {
    if (!std::isfinite(q.scales[i]) || (!q.offsets.empty() && !std::isfinite(q.offsets[i]))) {
      return bad(fmt::format("the scale of row {}, group {} is not finite",
                             i / static_cast<size_t>(q.groups()),
                             i % static_cast<size_t>(q.groups())));
    }
  }
  return absl::OkStatus();
}

void PackImportedScales(const MatrixLayout& m, const QuantizedMatrix& q, std::byte* record) {
  const int64_t width = ScaleBytes(m.scheme.scales);
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t g = 0; g < q.groups(); ++g) {
      const int64_t at = g * m.padded_rows + r;
      const float scale = q.scales[r * q.groups() + g];
      const uint32_t bits = EncodeScale(m.scheme.scales, scale);
      std::memcpy(record + m.scale_offset + at * width, &bits, width);
      if (q.offsets.empty()) continue;
      const float zero = q.offsets[r * q.groups() + g];
      record[m.zero_offset() + at] = static_cast<std::byte>(zero);
    }
  }
  if (m.scheme.scales != ScaleType::kE4M3) return;
  std::memcpy(record + m.matrix_scale_offset(), &q.matrix_scale, sizeof(float));
}

void UnpackImportedScales(const MatrixLayout& m, const std::byte* record, QuantizedMatrix* q) {
  const int64_t width = ScaleBytes(m.scheme.scales);
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t g = 0; g < q->groups(); ++g) {
      const int64_t at = g * m.padded_rows + r;
      uint32_t bits = 0;
      std::memcpy(&bits, record + m.scale_offset + at * width, width);
      q->scales[r * q->groups() + g] = DecodeScale(m.scheme.scales, bits);
      if (q->offsets.empty()) continue;
      q->offsets[r * q->groups() + g] = std::to_integer<int>(record[m.zero_offset() + at]);
    }
  }
  if (m.scheme.scales != ScaleType::kE4M3) return;
  std::memcpy(&q->matrix_scale, record + m.matrix_scale_offset(), sizeof(float));
}

int64_t TileBytes(const MatrixLayout& m) { return kRowTile * kKTile * m.scheme.weight_bits / 8; }

long NearestExponent(float scale) {
  const uint32_t bits = std::bit_cast<uint32_t>(scale);
  if ((bits & 0x7fffffu) == 0 && bits != 0) return static_cast<long>(bits >> 23) - 127;
  return std::lround(std::log2(scale));
}

// The lower of two that are as near; the largest where `scale` is above it.
uint32_t NearestE4M3(float scale) {
  constexpr int kMantissa = 3, kBias = 7, kFloatBias = 127;
  if (!(scale > 0)) return 0;
  scale = std::min(scale, 448.0f);
  // From 2^e on codes lie 2^(e - 3) apart, 8 of them; below 2^-6 as from there on.
  const int exponent = static_cast<int>(std::bit_cast<uint32_t>(scale) >> 23) - kFloatBias;
  const int least = std::max(exponent, 1 - kBias);
  const float steps =
      scale * std::bit_cast<float>(static_cast<uint32_t>(kMantissa - least + kFloatBias) << 23);
  const uint32_t whole = static_cast<uint32_t>(steps);
  const uint32_t code = whole + (steps - static_cast<float>(whole) > 0.5f ? 1 : 0);
  return code + (static_cast<uint32_t>(least + kBias - 1) << kMantissa);
}

}  // namespace

uint32_t EncodeScale(ScaleType type, float scale) {
  switch (type) {
    case ScaleType::kBF16:
      return F32ToBf16(scale);
    case ScaleType::kF16:
      return F32ToF16(scale);
    case ScaleType::kF32:
      return std::bit_cast<uint32_t>(scale);
    case ScaleType::kE8M0:
      if (!(scale > 0)) return 0;
      return static_cast<uint32_t>(std::clamp<long>(NearestExponent(scale), -127, kMostE8M0 - 127) +
                                   127);
    case ScaleType::kE4M3:
      return NearestE4M3(scale);
  }
  return 0;
}

float DecodeScale(ScaleType type, uint32_t bits) {
  switch (type) {
    case ScaleType::kBF16:
      return Bf16ToF32(static_cast<uint16_t>(bits));
    case ScaleType::kF16:
      return F16ToF32(static_cast<uint16_t>(bits));
    case ScaleType::kF32:
      return std::bit_cast<float>(bits);
    case ScaleType::kE8M0:
      return std::ldexp(1.0f, static_cast<int>(bits) - 127);
    case ScaleType::kE4M3:
      return F8E4M3ToF32(static_cast<uint8_t>(bits));
  }
  return 0;
}

float F4E2M1ToF32(uint8_t code) {
  constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return code & 8 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7];
}

QuantizedMatrix MakeQuantizedMatrix(const MatrixLayout& layout) {
  QuantizedMatrix q;
  q.rows = layout.rows;
  q.k = layout.k;
  q.group = layout.group;
  q.codes.assign(q.rows * q.k, 0);
  q.scales.assign(q.rows * q.groups(), 0);
  if (!layout.scheme.symmetric) q.offsets.assign(q.scales.size(), 0);
  return q;
}

std::vector<float> Dequantize(const Scheme& scheme, const QuantizedMatrix& q) {
  std::vector<float> out(q.codes.size());
  const float middle = static_cast<float>(1 << (scheme.weight_bits - 1));
  for (int64_t r = 0; r < q.rows; ++r) {
    for (int64_t c = 0; c < q.k; ++c) {
      const int64_t i = r * q.k + c;
      const int64_t g = r * q.groups() + c / q.group;
      const float u = static_cast<float>(q.codes[i]);
      if (scheme.fp8) {
        out[i] = q.scales[g] * F8E4M3ToF32(q.codes[i]);
      } else if (scheme.fp4) {
        out[i] = q.matrix_scale * (q.scales[g] * F4E2M1ToF32(q.codes[i]));
      } else if (scheme.zero_points) {
        out[i] = q.scales[g] * (u - q.offsets[g]);
      } else if (scheme.symmetric) {
        out[i] = q.scales[g] * (u - middle);
      } else {
        out[i] = q.scales[g] * u - q.offsets[g];
      }
    }
  }
  return out;
}

absl::Status PackMatrix(const MatrixLayout& m, const QuantizedMatrix& q, std::byte* record) {
  if (absl::Status s = CheckMatrix(m, q); !s.ok()) return s;
  std::memset(record + m.weight_offset, 0, m.weight_bytes);
  std::memset(record + m.scale_offset, 0, m.scale_bytes);
  PackTiles(m, q, reinterpret_cast<uint8_t*>(record + m.weight_offset), TileBytes(m));
  if (m.scheme.imported()) {
    PackImportedScales(m, q, record);
    return absl::OkStatus();
  }
  uint16_t* scales = reinterpret_cast<uint16_t*>(record + m.scale_offset);
  uint16_t* offsets = scales + q.groups() * m.padded_rows;
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t g = 0; g < q.groups(); ++g) {
      scales[g * m.padded_rows + r] = F32ToBf16(q.scales[r * q.groups() + g]);
      if (q.offsets.empty()) continue;
      offsets[g * m.padded_rows + r] = F32ToBf16(q.offsets[r * q.groups() + g]);
    }
  }
  return absl::OkStatus();
}

absl::Status UnpackCodes(const MatrixLayout& m, const std::byte* record, QuantizedMatrix* q) {
  if (m.scheme.is_bf16()) return absl::InvalidArgumentError("a bf16 matrix has no codes");
  *q = MakeQuantizedMatrix(m);
  const uint8_t* tiles = reinterpret_cast<const uint8_t*>(record + m.weight_offset);
  const int64_t tiles_per_row = m.padded_k / kKTile;
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t c = 0; c < m.k; ++c) {
      const uint8_t* tile = tiles + (r / kRowTile * tiles_per_row + c / kKTile) * TileBytes(m);
      q->codes[r * m.k + c] =
          static_cast<uint8_t>(GetCode(m.scheme.weight_bits, r % kRowTile, c % kKTile, tile));
    }
  }
  if (m.scheme.imported()) {
    UnpackImportedScales(m, record, q);
    return absl::OkStatus();
  }
  const uint16_t* scales = reinterpret_cast<const uint16_t*>(record + m.scale_offset);
  const uint16_t* offsets = scales + q->groups() * m.padded_rows;
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t g = 0; g < q->groups(); ++g) {
      q->scales[r * q->groups() + g] = Bf16ToF32(scales[g * m.padded_rows + r]);
      if (m.scheme.symmetric) continue;
      q->offsets[r * q->groups() + g] = Bf16ToF32(offsets[g * m.padded_rows + r]);
    }
  }
  return absl::OkStatus();
}

}  // namespace moert
