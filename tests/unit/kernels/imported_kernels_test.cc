// The kernels of imported schemes: each code is what it stands for, in every set; products lie
// within their bound of exact ones, and have the same bits whatever is computed beside them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/bf16.h"
#include "kernels/cpu/kernel_set.h"
#include "kernels/reference/codes.h"
#include "quant/quantized_matrix.h"
#include "tests/support/catch.h"

namespace moert::kernels {
namespace {

constexpr int kWidths[] = {2, 2, 4, 1, 1};  // of a scale, by its form
constexpr int kBlocks = kMaxBlocks;
constexpr ActivationNumerics kFloats[] = {ActivationNumerics::kBF16, ActivationNumerics::kF32};

struct Format {
  const char* name;
  WeightKind kind;
  int form;
  int64_t group_pieces;
  bool zeros;

  int bits() const { return kind == kImportedF8 ? 8 : 4; }
};
const Format kFormats[] = {
    {"mxfp4", kImportedF4, kScaleE8M0, 2, false},   {"nvfp4", kImportedF4, kScaleE4M3, 1, false},
    {"fp8_b128", kImportedF8, kScaleF32, 8, false}, {"g32", kImportedW4, kScaleBF16, 2, false},
    {"g64_zp", kImportedW4, kScaleF16, 4, true},    {"g128_zp", kImportedW4, kScaleBF16, 8, true},
};

AlignedBuffer Buffer(int64_t bytes) {
  AlignedBuffer buffer;
  REQUIRE_OK(buffer.Reset(bytes));
  std::memset(buffer.data(), 0xff, static_cast<size_t>(bytes));
  return buffer;
}

uint8_t* Bytes(AlignedBuffer& buffer) { return reinterpret_cast<uint8_t*>(buffer.data()); }

// Two row blocks of random codes over `channels`; what rounds them up to whole tiles is zero.
struct Weights {
  Format format;
  int64_t channels, tiles, groups, block_bytes;
  AlignedBuffer codes;
  std::vector<TileCodes> read;  // [block][tile]
  std::vector<uint8_t> scales, zeros;
  float matrix_scale = 1.5f;

  Weights(const Format& f, int64_t channels, uint32_t seed) : format(f), channels(channels) {
    std::mt19937 rng(seed);
    tiles = (channels + kTileK - 1) / kTileK;
    groups = (channels + f.group_pieces * kPieceK - 1) / (f.group_pieces * kPieceK);
    block_bytes = tiles * f.bits() * 128;
    codes = Buffer(kBlocks * block_bytes);
    for (int64_t i = 0; i < kBlocks * block_bytes; ++i) {
      uint8_t& code = Bytes(codes)[i];
      code = static_cast<uint8_t>(rng());
      if (f.bits() == 8 && (code & 0x7f) == 0x7f) code ^= 1;  // no number in e4m3
      if (i % block_bytes / (f.bits() * 32) >= (channels + kPieceK - 1) / kPieceK) code = 0;
    }
    for (int64_t i = 0; i < kBlocks * tiles; ++i) {
      read.push_back(ReadTile(f.bits(), Bytes(codes) + i * f.bits() * 128));
    }
    for (int64_t i = 0; i < groups * kBlocks * kBlockRows; ++i) {
      zeros.push_back(static_cast<uint8_t>(rng() % 17));
      const float scale = std::exp2(static_cast<float>(static_cast<int>(rng() % 8) - 5)) *
                          (f.form == kScaleE8M0 ? 1 : 1 + 0.125f * static_cast<float>(rng() % 8));
      SetScale(i, EncodeScale(static_cast<ScaleType>(f.form), scale));
    }
  }

  void SetScale(int64_t i, uint32_t bits) {
    const auto width = static_cast<size_t>(kWidths[format.form]);
    scales.resize(std::max(scales.size(), (static_cast<size_t>(i) + 1) * width));
    std::memcpy(scales.data() + static_cast<size_t>(i) * width, &bits, width);
  }

  double At(int block, int row, int64_t k) const {
    const TileCodes& tile = read[static_cast<size_t>(block * tiles + k / kTileK)];
    const uint8_t code = tile.at[row][k % kTileK];
    const int64_t at = (k / kPieceK / format.group_pieces * kBlocks + block) * kBlockRows + row;
    uint32_t bits = 0;
    const auto width = static_cast<size_t>(kWidths[format.form]);
    std::memcpy(&bits, scales.data() + static_cast<size_t>(at) * width, width);
    const double scale = DecodeScale(static_cast<ScaleType>(format.form), bits);
    if (format.kind == kImportedF8) return scale * F8E4M3ToF32(code);
    if (format.kind == kImportedW4) {
      return scale * (code - (format.zeros ? zeros[static_cast<size_t>(at)] : 8));
    }
    return scale * F4E2M1ToF32(code) * (format.form == kScaleE4M3 ? matrix_scale : 1.0f);
  }
};

// out[block][column][row]. `tiles`: room to keep weights as tiles, and whether they lie there.
std::vector<float> Multiply(const OperandKernels& kernels, const Weights& w,
                            const std::vector<std::vector<float>>& rows, int first_block,
                            int blocks, size_t first, int columns, AlignedBuffer* tiles = nullptr,
                            bool kept = false) {
  const bool wide = kernels.wide[w.format.kind] != nullptr;
  const int64_t bytes = (w.tiles * kernels.bytes_per_tile + 63) / 64 * 64;
  AlignedBuffer packed = Buffer(bytes * columns);
  alignas(64) float out[kMaxBlocks * kMaxColumns * kBlockRows];
  BlockGemmArgs args = {};
  args.blocks = blocks;
  args.columns = columns;
  args.k16s = w.tiles * kTilePieces;
  args.out = out;
  args.scale_form = w.format.form;
  args.scale_stride = kBlocks * kBlockRows;
  args.groups = w.groups;
  args.group_k16s = w.format.group_pieces;
  for (int i = 0; i < blocks; ++i) {
    const int64_t b = first_block + i;
    args.weights[i] = reinterpret_cast<const uint8_t*>(w.codes.data()) + b * w.block_bytes;
    args.raw_scales[i] = w.scales.data() + b * kBlockRows * kWidths[w.format.form];
    args.zeros[i] = w.format.zeros ? w.zeros.data() + b * kBlockRows : nullptr;
    args.matrix_scale[i] = w.format.form == kScaleE4M3 ? &w.matrix_scale : nullptr;
    if (tiles != nullptr) args.tiles[i] = Bytes(*tiles) + i * tiles->size() / kMaxBlocks;
  }
  args.tiles_kept = kept;
  args.next = args.weights[0];
  for (int i = 0; i < columns; ++i) {
    args.x[i] = Bytes(packed) + i * bytes;
    kernels.pack(rows[first + static_cast<size_t>(i)].data(), w.channels, args.k16s,
                 Bytes(packed) + i * bytes);
  }
  (wide ? kernels.wide : kernels.gemm)[w.format.kind](args);
  std::vector<float> result;
  for (int b = 0; b < blocks; ++b) {
    const float* from = out + b * kMaxColumns * kBlockRows;
    result.insert(result.end(), from, from + columns * kBlockRows);
  }
  return result;
}

// Rows of a bf16 each, which no set rounds.
std::vector<std::vector<float>> RandomRows(int64_t channels, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<std::vector<float>> rows(kMaxColumns);
  for (auto& row : rows) {
    for (int64_t k = 0; k < channels; ++k) {
      row.push_back(static_cast<float>(static_cast<int>(rng() % 255) - 127) / 16);
    }
  }
  return rows;
}

// Against activations that are 1 at one channel and 0 elsewhere a product is the weight.
void CheckCodes(const KernelSet& set, ActivationNumerics numerics, const Weights& w) {
  const OperandKernels kernels = set.For(OperandKind::kSummed, numerics);
  int64_t wrong = 0;
  for (int64_t first = 0; first < w.channels; first += kNarrowColumns) {
    const auto columns = static_cast<int>(std::min<int64_t>(kNarrowColumns, w.channels - first));
    std::vector<std::vector<float>> units(kNarrowColumns);
    for (size_t i = 0; i < units.size(); ++i) {
      units[i].resize(static_cast<size_t>(w.channels));
      if (first + static_cast<int64_t>(i) < w.channels)
        units[i][static_cast<size_t>(first) + i] = 1;
    }
    const auto got = Multiply(kernels, w, units, 0, kBlocks, 0, columns);
    for (size_t i = 0; i < got.size(); ++i) {
      const auto row = static_cast<int>(i % kBlockRows);
      const int64_t column = static_cast<int64_t>(i) / kBlockRows;
      const auto expected = static_cast<float>(
          w.At(static_cast<int>(column / columns), row, first + column % columns));
      // Instructions for bf16 take subnormal numbers for zero.
      const bool small = std::abs(expected) < 0x1p-126f;
      wrong += small ? !(std::abs(got[i] - expected) < 0x1.8p-126f) : got[i] != expected;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("imported codes are what they stand for") {
  const KernelSet* set = GENERATE(from_range(SupportedKernelSets()));
  const auto numerics = GENERATE(from_range(std::begin(kFloats), std::end(kFloats)));
  for (const Format& format : kFormats) {
    INFO(set->name << " numerics " << static_cast<int>(numerics) << " " << format.name);
    CheckCodes(*set, numerics, Weights(format, 4 * kTileK, 11));
    CheckCodes(*set, numerics, Weights(format, 3 * kTileK - 17, 12));
  }
  // Every power of two whose products fp32 holds.
  Weights powers(kFormats[0], 8 * kTileK, 13);
  for (int64_t i = 0; i < powers.groups * kBlocks * kBlockRows; ++i) {
    powers.SetScale(i, static_cast<uint32_t>(i % 253));
  }
  CheckCodes(*set, numerics, powers);
}

TEST_CASE("imported products lie within the bound of exact ones, and depend on nothing beside") {
  const KernelSet* set = GENERATE(from_range(SupportedKernelSets()));
  const auto numerics = GENERATE(from_range(std::begin(kFloats), std::end(kFloats)));
  const OperandKernels kernels = set->For(OperandKind::kSummed, numerics);
  for (const Format& format : kFormats) {
    for (const int64_t channels : {64, 200, 1408}) {
      INFO(set->name << " numerics " << static_cast<int>(numerics) << " " << format.name << " "
                     << channels);
      const Weights w(format, channels, 21);
      const auto rows = RandomRows(channels, 22);
      const int most = kernels.wide[format.kind] != nullptr ? kMaxColumns : kNarrowColumns;
      const auto got = Multiply(kernels, w, rows, 0, kBlocks, 0, most);
      int64_t wrong = 0;
      for (int b = 0; b < kBlocks; ++b) {
        for (int r = 0; r < kBlockRows; ++r) {
          std::vector<double> weights;
          for (int64_t k = 0; k < channels; ++k) weights.push_back(w.At(b, r, k));
          for (int c = 0; c < most; ++c) {
            double sum = 0, squares = 0;
            for (size_t k = 0; k < weights.size(); ++k) {
              const double term = weights[k] * rows[static_cast<size_t>(c)][k];
              sum += term;
              squares += term * term;
            }
            const float result = got[static_cast<size_t>((b * most + c) * kBlockRows + r)];
            wrong += !(std::abs(result - sum) <= 4e-6 * std::sqrt(squares));
          }
        }
      }
      CHECK(wrong == 0);
      const auto alone = [&](int b, size_t first, int columns, const std::vector<float>& part) {
        const auto* all = got.data() + (b * most + static_cast<int>(first)) * kBlockRows;
        return std::equal(part.begin(), part.begin() + columns * kBlockRows, all);
      };
      for (int c = 0; c < most; ++c) {
        const auto at = static_cast<size_t>(c);
        for (int b = 0; b < kBlocks; ++b) {
          REQUIRE(alone(b, at, 1, Multiply(kernels, w, rows, b, 1, at, 1)));
        }
        REQUIRE(alone(0, 0, c + 1, Multiply(kernels, w, rows, 0, kBlocks, 0, c + 1)));
      }
      if (kernels.kept_bytes[format.kind] == 0) continue;
      AlignedBuffer tiles = Buffer(kMaxBlocks * w.tiles * kernels.kept_bytes[format.kind]);
      REQUIRE(got == Multiply(kernels, w, rows, 0, kBlocks, 0, most, &tiles));
      REQUIRE(got == Multiply(kernels, w, rows, 0, kBlocks, 0, most, &tiles, /*kept=*/true));
    }
  }
}

}  // namespace
}  // namespace moert::kernels
