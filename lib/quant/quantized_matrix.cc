#include "quant/quantized_matrix.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/bf16.h"
#include "base/errors.h"
#include "fmt/format.h"

namespace moert {
namespace {

constexpr float kMostZero = 16;  // GPTQ stores zeros less one
constexpr long kMostE8M0 = 250;  // above it a weight could overflow bf16

long NearestExponent(float scale) {
  const uint32_t bits = std::bit_cast<uint32_t>(scale);
  if ((bits & 0x7fffffu) == 0 && bits != 0) return static_cast<long>(bits >> 23) - 127;
  return std::lround(std::log2(scale));
}

// The nearest e4m3 code, the lower one of a tie; the largest if `scale` exceeds it.
uint32_t NearestE4M3(float scale) {
  constexpr int kMantissa = 3, kBias = 7, kFloatBias = 127;
  if (!(scale > 0)) return 0;
  scale = std::min(scale, 448.0f);
  // From 2^e on, values are 2^(e - 3) apart, 8 of them; below 2^-6 the spacing is constant.
  const int exponent = static_cast<int>(std::bit_cast<uint32_t>(scale) >> 23) - kFloatBias;
  const int least = std::max(exponent, 1 - kBias);
  const float steps =
      scale * std::bit_cast<float>(static_cast<uint32_t>(kMantissa - least + kFloatBias) << 23);
  const uint32_t whole = static_cast<uint32_t>(steps);
  const uint32_t code = whole + (steps - static_cast<float>(whole) > 0.5f ? 1 : 0);
  return code + (static_cast<uint32_t>(least + kBias - 1) << kMantissa);
}

// Converts a scale to its stored form.
template <ScaleType type>
uint32_t Encode(float scale) {
  if constexpr (type == ScaleType::kBF16) return F32ToBf16(scale);
  if constexpr (type == ScaleType::kF16) return F32ToF16(scale);
  if constexpr (type == ScaleType::kF32) return std::bit_cast<uint32_t>(scale);
  if constexpr (type == ScaleType::kE4M3) return NearestE4M3(scale);
  if constexpr (type == ScaleType::kE8M0) {
    if (!(scale > 0)) return 0;
    return static_cast<uint32_t>(std::clamp<long>(NearestExponent(scale), -127, kMostE8M0 - 127) +
                                 127);
  }
}

template <ScaleType type>
float Decode(uint32_t bits) {
  if constexpr (type == ScaleType::kBF16) return Bf16ToF32(static_cast<uint16_t>(bits));
  if constexpr (type == ScaleType::kF16) return F16ToF32(static_cast<uint16_t>(bits));
  if constexpr (type == ScaleType::kF32) return std::bit_cast<float>(bits);
  if constexpr (type == ScaleType::kE4M3) return F8E4M3ToF32(static_cast<uint8_t>(bits));
  if constexpr (type == ScaleType::kE8M0) {
    return bits == 0 ? 0x1p-127f : std::bit_cast<float>(bits << 23);
  }
}

// do_it.operator()<type>()
template <typename DoIt>
auto WithType(ScaleType type, DoIt do_it) {
  switch (type) {
    case ScaleType::kBF16:
      return do_it.template operator()<ScaleType::kBF16>();
    case ScaleType::kF16:
      return do_it.template operator()<ScaleType::kF16>();
    case ScaleType::kE8M0:
      return do_it.template operator()<ScaleType::kE8M0>();
    case ScaleType::kE4M3:
      return do_it.template operator()<ScaleType::kE4M3>();
    case ScaleType::kF32:
      break;
  }
  return do_it.template operator()<ScaleType::kF32>();
}

absl::Status Bad(const MatrixLayout& m, const std::string& what) {
  return InvalidArgument("packing a {} x {} matrix as {}: {}", m.rows, m.k, m.scheme.Name(), what);
}

absl::Status CheckShape(const MatrixLayout& m, const QuantizedMatrix& q) {
  if (m.scheme.is_bf16()) return Bad(m, "bf16 matrices have no codes");
  const size_t groups = static_cast<size_t>(q.rows * q.groups());
  if (q.rows == m.rows && q.k == m.k && q.group == m.group && q.scales.size() == groups &&
      q.offsets.size() == (m.scheme.symmetric ? 0 : groups)) {
    return absl::OkStatus();
  }
  return Bad(m, fmt::format("was given {} x {} in groups of {} with {} scales, {} offsets", q.rows,
                            q.k, q.group, q.scales.size(), q.offsets.size()));
}

/// The range of a type's positive normal numbers, as bits of floats.
struct Normals {
  int mantissa;  // bits
  uint32_t least, most;
  uint32_t bias;  // of float's exponent, less that of the type's, in place
};
constexpr uint32_t Bits(float f) { return std::bit_cast<uint32_t>(f); }
template <ScaleType type>
constexpr Normals NormalsOf() {
  constexpr uint32_t kMost = Bits(std::numeric_limits<float>::max());
  if constexpr (type == ScaleType::kBF16) return {7, 0, kMost, 0};
  if constexpr (type == ScaleType::kF16) return {10, Bits(0x1p-14f), Bits(65504), 112u << 23};
  if constexpr (type == ScaleType::kE8M0) return {0, Bits(0x1p-126f), kMostE8M0 << 23, 0};
  if constexpr (type == ScaleType::kE4M3) return {3, Bits(0x1p-6f), Bits(448), 120u << 23};
  return {23, 0, kMost, 0};
}

using RowScales = std::array<float, kRowTile>;
template <typename T>
using RowBits = std::array<T, kRowTile>;

// Stores scales of 16 rows in the type's form; false if the type lacks one. If all are positive
// normal numbers, vector instructions do it.
template <ScaleType type, typename T>
bool EncodeRows(const RowScales& scales, RowBits<T>* out) {
  constexpr Normals kType = NormalsOf<type>();
  constexpr int kDropped = 23 - kType.mantissa;
  constexpr uint32_t kRest = (1u << kDropped) - 1;
  uint32_t others = 0;
  for (size_t i = 0; i < scales.size(); ++i) {
    const uint32_t bits = Bits(scales[i]);
    others |= (bits & kRest) | (bits - kType.least > kType.most - kType.least ? 1u : 0u);
    (*out)[i] = static_cast<T>((bits - kType.bias) >> kDropped);
  }
  if (others == 0) return true;
  bool exact = true;
  for (size_t i = 0; i < scales.size(); ++i) {
    const uint32_t bits = Encode<type>(scales[i]);
    exact = exact && std::isfinite(scales[i]) && Decode<type>(bits) == scales[i];
    (*out)[i] = static_cast<T>(bits);
  }
  return exact;
}

bool EncodeZeros(const RowScales& zeros, RowBits<uint8_t>* out) {
  uint32_t others = 0;
  for (size_t i = 0; i < zeros.size(); ++i) {
    const int zero = static_cast<int>(std::min(std::max(-1.0f, zeros[i]), kMostZero + 1));
    others |= (static_cast<float>(zero) != zeros[i] ? 1u : 0u) |
              (static_cast<uint32_t>(zero) > static_cast<uint32_t>(kMostZero) ? 1u : 0u);
    (*out)[i] = static_cast<uint8_t>(zero);
  }
  return others == 0;
}

// Transposes [rows, groups] to [groups, padded rows], 16 rows at a time. Returns whether `encode`
// accepted all values.
template <typename T, typename EncodeThem>
bool PutGroups(const MatrixLayout& m, const std::vector<float>& from, std::byte* to,
               EncodeThem encode) {
  const int64_t groups = m.groups();
  bool all = true;
  RowScales scales;
  scales.fill(1);  // legal where rows end
  RowBits<T> bits;
  for (int64_t row = 0; row < m.rows && !from.empty(); row += kRowTile) {
    const int64_t rows = std::min(kRowTile, m.rows - row);
    const float* at = from.data() + row * groups;
    for (int64_t g = 0; g < groups; ++g, ++at) {
      for (int64_t r = 0; r < rows; ++r) scales[r] = at[r * groups];
      all = encode(scales, &bits) && all;
      std::memcpy(to + (g * m.padded_rows + row) * int64_t{sizeof(T)}, bits.data(),
                  rows * sizeof(T));
    }
  }
  return all;
}

template <ScaleType type>
bool PutScales(const MatrixLayout& m, const std::vector<float>& from, std::byte* to) {
  constexpr bool kByte = type == ScaleType::kE8M0 || type == ScaleType::kE4M3;
  using Narrow = std::conditional_t<kByte, uint8_t, uint16_t>;
  using T = std::conditional_t<type == ScaleType::kF32, uint32_t, Narrow>;
  return PutGroups<T>(m, from, to, [](const RowScales& scales, RowBits<T>* bits) {
    return EncodeRows<type, T>(scales, bits);
  });
}

absl::Status PackImportedScales(const MatrixLayout& m, const QuantizedMatrix& q,
                                std::byte* record) {
  std::byte* const to = record + m.scale_offset;
  const bool scales =
      WithType(m.scheme.scales, [&]<ScaleType type>() { return PutScales<type>(m, q.scales, to); });
  const bool zeros = PutGroups<uint8_t>(m, q.offsets, record + m.zero_offset(), EncodeZeros);
  for (size_t i = 0; !(scales && zeros) && i < q.scales.size(); ++i) {
    const float scale = q.scales[i], zero = q.offsets.empty() ? 0 : q.offsets[i];
    const float stored = DecodeScale(m.scheme.scales, EncodeScale(m.scheme.scales, scale));
    if (std::isfinite(scale) && stored == scale && zero >= 0 && zero <= kMostZero &&
        zero == std::floor(zero)) {
      continue;
    }
    return Bad(m, fmt::format("row {}, group {}: scale {} and zero {}: legal are a finite value of "
                              "the scheme's scale type and an integer in [0, {}]",
                              i / static_cast<size_t>(q.groups()),
                              i % static_cast<size_t>(q.groups()), scale, zero, kMostZero));
  }
  if (!std::isfinite(q.matrix_scale)) return Bad(m, "the scale of the matrix is not finite");
  if (m.scheme.scales != ScaleType::kE4M3) return absl::OkStatus();
  std::memcpy(record + m.matrix_scale_offset(), &q.matrix_scale, sizeof(float));
  return absl::OkStatus();
}

absl::Status PackOwnScales(const MatrixLayout& m, const QuantizedMatrix& q, std::byte* record) {
  for (size_t i = 0; i < q.scales.size(); ++i) {
    if (std::isfinite(q.scales[i]) && (q.offsets.empty() || std::isfinite(q.offsets[i]))) continue;
    return Bad(
        m, fmt::format("the scale of row {}, group {} is not finite",
                       i / static_cast<size_t>(q.groups()), i % static_cast<size_t>(q.groups())));
  }
  // Rounded if they are no bf16 values.
  PutScales<ScaleType::kBF16>(m, q.scales, record + m.scale_offset);
  PutScales<ScaleType::kBF16>(m, q.offsets, record + m.zero_offset());
  return absl::OkStatus();
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

}  // namespace

uint32_t EncodeScale(ScaleType type, float scale) {
  return WithType(type, [&]<ScaleType t>() { return Encode<t>(scale); });
}

float DecodeScale(ScaleType type, uint32_t bits) {
  return WithType(type, [&]<ScaleType t>() { return Decode<t>(bits); });
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

absl::Status PackScales(const MatrixLayout& m, const QuantizedMatrix& q, std::byte* record) {
  if (absl::Status s = CheckShape(m, q); !s.ok()) return s;
  std::memset(record + m.scale_offset, 0, m.scale_bytes);
  return m.scheme.imported() ? PackImportedScales(m, q, record) : PackOwnScales(m, q, record);
}

absl::Status PackTile(const MatrixLayout& m, int64_t row, int64_t k, const CodeTile& codes,
                      std::byte* record) {
  const int bits = m.scheme.weight_bits;
  if (LegalCodes(m.scheme, codes)) {
    const int64_t tile = row / kRowTile * (m.padded_k / kKTile) + k / kKTile;
    auto* tiles = reinterpret_cast<uint8_t*>(record + m.weight_offset);
    PackCodeTile(bits, codes, tiles + tile * CodeTileBytes(bits));
    return absl::OkStatus();
  }
  for (int64_t i = 0; i < kRowTile * kKTile; ++i) {
    const int64_t r = i / kKTile, c = i % kKTile;
    const unsigned code = codes[r][c], limit = 1u << bits;
    if (code >= limit) {
      return Bad(m, fmt::format("code {} at row {}, k {}: must be in [0, {})", code, row + r, k + c,
                                limit));
    }
    if (m.scheme.fp8 && (code & 0x7f) == 0x7f) {
      return Bad(m, fmt::format("code {} at row {}, k {} is no number", code, row + r, k + c));
    }
  }
  return absl::OkStatus();
}

absl::Status PackMatrix(const MatrixLayout& m, const QuantizedMatrix& q, std::byte* record) {
  if (absl::Status s = PackScales(m, q, record); !s.ok()) return s;
  if (std::ssize(q.codes) != m.rows * m.k) {
    return Bad(m, fmt::format("was given {} codes", q.codes.size()));
  }
  CodeTile codes;
  for (int64_t row0 = 0; row0 < m.rows; row0 += kRowTile) {
    const int64_t rows = std::min<int64_t>(kRowTile, m.rows - row0);
    for (int64_t k0 = 0; k0 < m.k; k0 += kKTile) {
      const int64_t width = std::min<int64_t>(kKTile, m.k - k0);
      if (rows < kRowTile || width < kKTile) std::memset(codes, 0, sizeof(codes));
      for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(codes[r], q.codes.data() + (row0 + r) * m.k + k0, width);
      }
      if (absl::Status s = PackTile(m, row0, k0, codes, record); !s.ok()) return s;
    }
  }
  return absl::OkStatus();
}

absl::Status UnpackCodes(const MatrixLayout& m, const std::byte* record, QuantizedMatrix* q) {
  if (m.scheme.is_bf16()) return absl::InvalidArgumentError("a bf16 matrix has no codes");
  *q = MakeQuantizedMatrix(m);
  const uint8_t* tiles = reinterpret_cast<const uint8_t*>(record + m.weight_offset);
  const int64_t tiles_per_row = m.padded_k / kKTile;
  const int bits = m.scheme.weight_bits;
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t c = 0; c < m.k; ++c) {
      const uint8_t* tile =
          tiles + (r / kRowTile * tiles_per_row + c / kKTile) * CodeTileBytes(bits);
      q->codes[r * m.k + c] = PackedCode(bits, r % kRowTile, c % kKTile, tile);
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
