#include "quant/packing.h"

#include <emmintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "base/bf16.h"
#include "base/checked_math.h"
#include "base/errors.h"
#include "quant/quantized_matrix.h"
#include "quant/shuffle_lines.h"

namespace moert {
namespace {

static_assert(std::endian::native == std::endian::little,
              "records are little-endian and read without conversion");

constexpr int64_t kLanes = 32;
constexpr int64_t kBlockK = 16;
constexpr int64_t kBlockValues = kRowTile * kBlockK;

// The place of value v (0..7, as bf16 halves of a0..a3) of a lane inside its block.
struct Place {
  int64_t row;
  int64_t k;
};
constexpr Place FragmentPlace(int64_t lane, int64_t v) {
  const int64_t g = lane / 4, t = lane % 4;
  const int64_t reg = v / 2;
  return {g + (reg & 1) * 8, 2 * t + (v & 1) + (reg >> 1) * 8};
}

absl::Status CheckBf16(const MatrixLayout& m, size_t count) {
  if (!m.scheme.is_bf16()) {
    return InvalidArgument("PackMatrixBf16 got a layout of scheme {}", m.scheme.Name());
  }
  if (static_cast<int64_t>(count) != m.rows * m.k) {
    return InvalidArgument("a matrix of {} x {} was given {} weights", m.rows, m.k, count);
  }
  return absl::OkStatus();
}

// Packs a whole block of bf16 weights, whose rows are `stride` apart. Lane 4 g + t takes pair t of
// rows g and g + 8, then pair t + 4 of both.
void PackBlock(const uint16_t* weights, int64_t stride, std::byte* out) {
  auto* to = reinterpret_cast<__m128i*>(out);
  for (int64_t g = 0; g < kRowTile / 2; ++g, to += 4) {
    const auto* upper = reinterpret_cast<const __m128i*>(weights + g * stride);
    const auto* lower = reinterpret_cast<const __m128i*>(weights + (g + kRowTile / 2) * stride);
    const __m128i a0 = _mm_loadu_si128(upper), a1 = _mm_loadu_si128(upper + 1);
    const __m128i b0 = _mm_loadu_si128(lower), b1 = _mm_loadu_si128(lower + 1);
    const __m128i low0 = _mm_unpacklo_epi32(a0, b0), low1 = _mm_unpacklo_epi32(a1, b1);
    const __m128i high0 = _mm_unpackhi_epi32(a0, b0), high1 = _mm_unpackhi_epi32(a1, b1);
    _mm_storeu_si128(to, _mm_unpacklo_epi64(low0, low1));
    _mm_storeu_si128(to + 1, _mm_unpackhi_epi64(low0, low1));
    _mm_storeu_si128(to + 2, _mm_unpacklo_epi64(high0, high1));
    _mm_storeu_si128(to + 3, _mm_unpackhi_epi64(high0, high1));
  }
}

// Transposes a block of channels, which are `apart` from each other, into rows; `rows` x `width`
// exist, zeros follow.
void TurnBlock(const uint16_t* lines, int64_t apart, int64_t rows, int64_t width,
               uint16_t (&block)[kRowTile][kBlockK]) {
  if (rows < kRowTile || width < kBlockK) {
    std::memset(block, 0, sizeof(block));
    for (int64_t i = 0; i < width; ++i) {
      for (int64_t r = 0; r < rows; ++r) block[r][i] = lines[i * apart + r];
    }
    return;
  }
  for (int64_t k = 0; k < kBlockK; k += 8) {
    for (int64_t row = 0; row < kRowTile; row += 8) {
      EightLines eight;
      for (int64_t i = 0; i < 8; ++i) {
        eight.x[i] =
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(lines + (k + i) * apart + row));
      }
      eight = ShuffleLines<uint16_t, 3>(eight);
      for (int64_t i = 0; i < 8; ++i) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(&block[row + i][k]), eight.x[i]);
      }
    }
  }
}

// Packs rows [first, first + rows) of a matrix block by block; `first` begins a block. The 16
// values of a row go, in pairs, to two registers of four lanes each.
template <typename T, typename ToBf16>
void Pack(const MatrixLayout& m, int64_t first, int64_t rows, const T* weights, std::byte* record,
          ToBf16 to_bf16) {
  std::byte* out = record + m.weight_offset + first * m.padded_k * int64_t{sizeof(uint16_t)};
  uint32_t block[kLanes * 4];
  for (int64_t row0 = 0; row0 < rows; row0 += kRowTile) {
    for (int64_t k0 = 0; k0 < m.padded_k; k0 += kBlockK) {
      const int64_t count = std::clamp<int64_t>(m.k - k0, 0, kBlockK);
      if constexpr (std::is_same_v<T, uint16_t>) {
        if (count == kBlockK && row0 + kRowTile <= rows) {
          PackBlock(weights + row0 * m.k + k0, m.k, out);
          out += sizeof(block);
          continue;
        }
      }
      for (int64_t r = 0; r < kRowTile; ++r) {
        uint16_t values[kBlockK] = {};
        if (row0 + r < rows) {
          const T* row = weights + (row0 + r) * m.k + k0;
          for (int64_t i = 0; i < count; ++i) values[i] = to_bf16(row[i]);
        }
        uint32_t pairs[kBlockK / 2];
        std::memcpy(pairs, values, sizeof(pairs));
        uint32_t* lanes = block + (r % 8) * 16 + r / 8;
        for (int64_t t = 0; t < 4; ++t) {
          lanes[t * 4] = pairs[t];
          lanes[t * 4 + 2] = pairs[t + 4];
        }
      }
      std::memcpy(out, block, sizeof(block));
      out += sizeof(block);
    }
  }
}

void UnpackBf16(const MatrixLayout& m, const std::byte* record, float* out) {
  const std::byte* in = record + m.weight_offset;
  uint16_t block[kBlockValues];
  for (int64_t row0 = 0; row0 < m.padded_rows; row0 += kRowTile) {
    for (int64_t k0 = 0; k0 < m.padded_k; k0 += kBlockK) {
      std::memcpy(block, in, sizeof(block));
      in += sizeof(block);
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        for (int64_t v = 0; v < 8; ++v) {
          const Place p = FragmentPlace(lane, v);
          const int64_t row = row0 + p.row, k = k0 + p.k;
          if (row < m.rows && k < m.k) out[row * m.k + k] = Bf16ToF32(block[lane * 8 + v]);
        }
      }
    }
  }
}

}  // namespace

absl::Status PackMatrixBf16(const MatrixLayout& layout, absl::Span<const uint16_t> weights,
                            std::byte* record) {
  if (absl::Status s = CheckBf16(layout, weights.size()); !s.ok()) return s;
  return PackRowsBf16(layout, 0, weights, record);
}

absl::Status PackRowsBf16(const MatrixLayout& layout, int64_t first,
                          absl::Span<const uint16_t> rows, std::byte* record) {
  const auto count = static_cast<int64_t>(rows.size()) / std::max<int64_t>(layout.k, 1);
  const int64_t end = first + count;
  if (!layout.scheme.is_bf16() || static_cast<int64_t>(rows.size()) != count * layout.k ||
      first % kRowTile != 0 || end > layout.rows || (end % kRowTile != 0 && end != layout.rows)) {
    return InvalidArgument("{} weights from row {} are not whole blocks of rows of {} x {} in {}",
                           rows.size(), first, layout.rows, layout.k, layout.scheme.Name());
  }
  Pack(layout, first, count, rows.data(), record, [](uint16_t v) { return v; });
  return absl::OkStatus();
}

absl::Status PackChannelsBf16(const MatrixLayout& m, int64_t first,
                              absl::Span<const uint16_t> lines, int64_t apart, std::byte* record) {
  const auto size = static_cast<int64_t>(lines.size());
  const int64_t count = apart >= m.rows && size >= m.rows ? (size - m.rows) / apart + 1 : 0;
  const int64_t end = first + count;
  if (!m.scheme.is_bf16() || count == 0 || size != (count - 1) * apart + m.rows ||
      first % kKTile != 0 || end > m.k || (end % kKTile != 0 && end != m.k)) {
    return InvalidArgument(
        "{} weights from channel {} are not whole tiles of channels of {} x {} "
        "in {}",
        size, first, m.rows, m.k, m.scheme.Name());
  }
  uint16_t block[kRowTile][kBlockK];
  for (int64_t row = 0; row < m.padded_rows; row += kRowTile) {
    const int64_t rows = std::min(kRowTile, m.rows - row);
    std::byte* out = record + m.weight_offset + (row * m.padded_k + first * kRowTile) * 2;
    for (int64_t k = first; k < RoundUp(end, kKTile); k += kBlockK, out += sizeof(block)) {
      const int64_t width = std::clamp<int64_t>(end - k, 0, kBlockK);
      TurnBlock(lines.data() + (k - first) * apart + row, apart, rows, width, block);
      PackBlock(block[0], kBlockK, out);
    }
  }
  return absl::OkStatus();
}

std::vector<uint16_t> TurnChannels(const uint16_t* lines, int64_t apart, int64_t rows, int64_t k) {
  std::vector<uint16_t> out(static_cast<size_t>(rows * k));
  uint16_t block[kRowTile][kBlockK];
  for (int64_t row = 0; row < rows; row += kRowTile) {
    const int64_t height = std::min(kRowTile, rows - row);
    for (int64_t first = 0; first < k; first += kBlockK) {
      const int64_t width = std::min<int64_t>(kBlockK, k - first);
      TurnBlock(lines + first * apart + row, apart, height, width, block);
      for (int64_t r = 0; r < height; ++r) {
        std::copy_n(block[r], width, out.begin() + (row + r) * k + first);
      }
    }
  }
  return out;
}

absl::Status PackMatrixBf16(const MatrixLayout& layout, absl::Span<const float> weights,
                            std::byte* record) {
  if (absl::Status s = CheckBf16(layout, weights.size()); !s.ok()) return s;
  Pack(layout, 0, layout.rows, weights.data(), record, [](float v) { return F32ToBf16(v); });
  return absl::OkStatus();
}

absl::Status UnpackMatrix(const MatrixLayout& layout, const std::byte* record,
                          std::vector<float>* out) {
  if (!layout.scheme.is_bf16()) {
    QuantizedMatrix codes;
    if (absl::Status s = UnpackCodes(layout, record, &codes); !s.ok()) return s;
    *out = Dequantize(layout.scheme, codes);
    return absl::OkStatus();
  }
  out->assign(layout.rows * layout.k, 0.0f);
  UnpackBf16(layout, record, out->data());
  return absl::OkStatus();
}

}  // namespace moert
