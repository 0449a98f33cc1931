#include "quant/packing.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/bf16.h"
#include "base/errors.h"
#include "quant/quantized_matrix.h"

namespace moert {
namespace {

static_assert(std::endian::native == std::endian::little,
              "records are little-endian and read without conversion");

constexpr int64_t kLanes = 32;
constexpr int64_t kBlockK = 16;
constexpr int64_t kBlockValues = kRowTile * kBlockK;

// Where value v (0..7, as bf16 halves of a0..a3) of a lane lies inside its block.
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

// Row by row of a block: the 16 values of a row go, in pairs, to two registers of four lanes each.
template <typename T, typename ToBf16>
void Pack(const MatrixLayout& m, const T* weights, std::byte* record, ToBf16 to_bf16) {
  std::byte* out = record + m.weight_offset;
  uint32_t block[kLanes * 4];
  for (int64_t row0 = 0; row0 < m.padded_rows; row0 += kRowTile) {
    for (int64_t k0 = 0; k0 < m.padded_k; k0 += kBlockK) {
      const int64_t count = std::clamp<int64_t>(m.k - k0, 0, kBlockK);
      for (int64_t r = 0; r < kRowTile; ++r) {
        uint16_t values[kBlockK] = {};
        if (row0 + r < m.rows) {
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
  Pack(layout, weights.data(), record, [](uint16_t v) { return v; });
  return absl::OkStatus();
}

absl::Status PackMatrixBf16(const MatrixLayout& layout, absl::Span<const float> weights,
                            std::byte* record) {
  if (absl::Status s = CheckBf16(layout, weights.size()); !s.ok()) return s;
  Pack(layout, weights.data(), record, [](float v) { return F32ToBf16(v); });
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
