// The quantized kernels of every set against the reference set, one call at a time.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/bf16.h"
#include "kernels/cpu/kernel_set.h"
#include "kernels/reference/codes.h"
#include "tests/support/catch.h"

namespace moert::kernels {
namespace {

constexpr int kBitsOf[kWeightKinds] = {16, 8, 4, 3, 2, 8};
constexpr OperandKind kIntegers[] = {OperandKind::kInt8Group, OperandKind::kInt8Token,
                                     OperandKind::kInt4Group, OperandKind::kInt4Token};

const KernelSet* Reference() { return SupportedKernelSets().back(); }

AlignedBuffer Buffer(int64_t bytes) {
  AlignedBuffer buffer;
  REQUIRE_OK(buffer.Reset(bytes));
  std::memset(buffer.data(), 0xff, static_cast<size_t>(bytes));
  return buffer;
}

uint8_t* Bytes(AlignedBuffer& buffer) { return reinterpret_cast<uint8_t*>(buffer.data()); }

std::vector<float> RandomRow(int64_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = normal(rng);
  return x;
}

// Two row blocks of random codes, all of them legal, with random scales.
struct Weights {
  AlignedBuffer codes;
  std::vector<uint16_t> scales, offsets;
  int64_t block_bytes = 0;
  int64_t groups = 0;

  Weights(int kind, int64_t tiles, int64_t group_tiles, bool extreme, uint32_t seed) {
    const int bits = kBitsOf[kind];
    const bool f8 = kind == kF8Weights;
    std::mt19937 rng(seed);
    block_bytes = tiles * bits * 128;
    groups = (tiles + group_tiles - 1) / group_tiles;
    codes = Buffer(2 * block_bytes);
    for (int64_t i = 0; i < 2 * block_bytes; ++i) {
      Bytes(codes)[i] = extreme ? (rng() % 2 == 0 ? 0xff : 0) : static_cast<uint8_t>(rng());
      if (f8 && (Bytes(codes)[i] & 0x7f) == 0x7f) Bytes(codes)[i] ^= 1;  // NaN
    }
    for (int64_t i = 0; i < groups * 32; ++i) {
      const auto random = [&] { return static_cast<float>(rng() % 1000 + 1) * 1e-5f; };
      scales.push_back(F32ToBf16(random()));
      offsets.push_back(F32ToBf16(random() * static_cast<float>(1 << (bits - 1))));
    }
  }
};

struct Case {
  int kind;  // of weights
  int64_t tiles, group_tiles, flush_tiles;
  bool symmetric;
  bool extreme = false;
};

// out[blocks][columns][rows] of one call, `blocks` and `columns` wide.
std::vector<float> Multiply(const OperandKernels& kernels, const Case& c, const Weights& weights,
                            const std::vector<std::vector<float>>& rows, int64_t valid,
                            int first_block, int blocks, int first, int columns,
                            bool wide = false) {
  const int64_t bytes = (c.tiles * kernels.bytes_per_tile + 63) / 64 * 64;
  AlignedBuffer packed = Buffer(bytes * columns);
  alignas(64) float out[kMaxBlocks * kMaxColumns * kBlockRows];
  BlockGemmArgs args = {};
  args.blocks = blocks;
  args.columns = columns;
  args.k16s = c.tiles * kTilePieces;
  for (int b = 0; b < blocks; ++b) {
    args.weights[b] = reinterpret_cast<const uint8_t*>(weights.codes.data()) +
                      (first_block + b) * weights.block_bytes;
    args.scales[b] = weights.scales.data() + (first_block + b) * 16;
    args.offsets[b] = c.symmetric ? nullptr : weights.offsets.data() + (first_block + b) * 16;
  }
  args.next = args.weights[0];
  args.scale_stride = 32;
  args.group_tiles = c.group_tiles;
  args.flush_tiles = c.flush_tiles;
  args.out = out;
  for (int i = 0; i < columns; ++i) {
    args.x[i] = Bytes(packed) + i * bytes;
    kernels.pack(rows[static_cast<size_t>(first + i)].data(), valid, args.k16s,
                 Bytes(packed) + i * bytes);
  }
  (wide ? kernels.wide : kernels.gemm)[c.kind](args);
  std::vector<float> result;
  for (int b = 0; b < blocks; ++b) {
    for (int i = 0; i < columns; ++i) {
      const float* from = out + (b * kMaxColumns + i) * kBlockRows;
      result.insert(result.end(), from, from + kBlockRows);
    }
  }
  return result;
}

std::vector<Case> Cases(const std::vector<int>& kinds = {kW8, kW4, kW3, kW2}) {
  std::vector<Case> cases;
  for (const int kind : kinds) {
    for (const bool symmetric : {true, false}) {
      if (kind == kF8Weights && !symmetric) continue;
      for (const int64_t tiles : {1, 2, 3, 5, 16}) {
        cases.push_back({kind, tiles, 2, 2, symmetric});
        cases.push_back({kind, tiles, 1, 1, symmetric});
        cases.push_back({kind, tiles, tiles, std::min<int64_t>(tiles, 2), symmetric});
        cases.push_back({kind, tiles, tiles, tiles, symmetric});
      }
      cases.push_back({kind, 4, 2, 2, symmetric, /*extreme=*/true});
    }
  }
  return cases;
}

TEST_CASE("integer rows are packed to the same bytes by every set") {
  const KernelSet* set = GENERATE(from_range(SupportedKernelSets()));
  const auto kind = GENERATE(from_range(std::begin(kIntegers), std::end(kIntegers)));
  const OperandKernels kernels = set->For(kind, ActivationNumerics::kBF16);
  const OperandKernels reference = Reference()->For(kind, ActivationNumerics::kBF16);
  REQUIRE(kernels.bytes_per_tile == reference.bytes_per_tile);
  const int64_t tiles = 5;
  const int64_t bytes = tiles * kernels.bytes_per_tile;
  const std::vector<float> row = RandomRow(tiles * 64, 1);
  for (int64_t valid = 1; valid <= tiles * 64; valid += valid < 200 ? 1 : 13) {
    for (int variant = 0; variant < 4; ++variant) {
      // Exactly as long as it is, so that a sanitizer sees a read beyond.
      std::vector<float> x(row.begin(), row.begin() + valid);
      const auto at = static_cast<size_t>(valid / 2);
      if (variant == 1) x[at] = std::numeric_limits<float>::quiet_NaN();
      if (variant == 2) x[at] = -std::numeric_limits<float>::infinity();
      if (variant == 3) {
        for (float& value : x) value *= 1e-33f;
      }
      AlignedBuffer got = Buffer(bytes), expected = Buffer(bytes);
      kernels.pack(x.data(), valid, tiles * kTilePieces, Bytes(got));
      reference.pack(x.data(), valid, tiles * kTilePieces, Bytes(expected));
      REQUIRE(std::memcmp(got.data(), expected.data(), static_cast<size_t>(bytes)) == 0);
    }
  }
}

TEST_CASE("packed integers are what the definition says") {
  const auto kernels = Reference()->For(OperandKind::kInt8Group, ActivationNumerics::kBF16);
  std::vector<float> x(192, 0.0f);
  x[0] = 127.0f;
  x[1] = -1.5f;   // a tie, to even
  x[2] = 0.5f;    // to 0
  x[64] = 3.4f;   // shares the scale of the first tile
  x[128] = 2.0f;  // of a group of its own: 127
  AlignedBuffer packed = Buffer(3 * kernels.bytes_per_tile);
  kernels.pack(x.data(), 192, 12, Bytes(packed));
  const auto* codes = reinterpret_cast<const int8_t*>(packed.data());
  const auto* scales = reinterpret_cast<const TileScale*>(packed.data() + 192);
  CHECK(codes[0] == 127);  // channel 0
  CHECK(codes[2] == -2);   // channel 1: third of t = 0
  CHECK(codes[4] == 0);    // channel 2: first of t = 1
  CHECK(codes[64] == 3);
  CHECK(codes[128] == 127);
  CHECK(scales[0].scale == 1.0f);
  CHECK(scales[0].sum == 125);
  CHECK(scales[1].scale == 1.0f);
  CHECK(scales[1].sum == 3);
  CHECK(scales[2].scale == 2.0f / 127);
}

TEST_CASE("integer products are the reference's to the bit") {
  const KernelSet* set = GENERATE(from_range(SupportedKernelSets()));
  const auto kind = GENERATE(from_range(std::begin(kIntegers), std::end(kIntegers)));
  const OperandKernels kernels = set->For(kind, ActivationNumerics::kBF16);
  const OperandKernels reference = Reference()->For(kind, ActivationNumerics::kBF16);
  const bool grouped = kind == OperandKind::kInt8Group || kind == OperandKind::kInt4Group;
  uint32_t seed = 0;
  for (const Case& c : Cases()) {
    if (grouped && c.flush_tiles > kInt8GroupTiles) continue;
    INFO(set->name << " operand " << static_cast<int>(kind) << " bits " << kBitsOf[c.kind]
                   << " tiles " << c.tiles << " group " << c.group_tiles << " flush "
                   << c.flush_tiles << " symmetric " << c.symmetric);
    const Weights weights(c.kind, c.tiles, c.group_tiles, c.extreme, ++seed);
    const int64_t valid = c.tiles * 64 - c.tiles % 3;
    std::vector<std::vector<float>> rows;
    for (int i = 0; i < kMaxColumns; ++i) {
      rows.push_back(RandomRow(valid, seed * 100 + static_cast<uint32_t>(i)));
      if (c.extreme) {
        for (float& value : rows.back()) value = i % 2 == 0 ? 1.0f : std::copysign(1.0f, value);
      }
    }
    // Two blocks of the most columns first: what it leaves behind would show in the smaller ones.
    for (const int columns : {kMaxColumns, 1, 4, 15, 16, 17, 31}) {
      if (kernels.wide[c.kind] == nullptr) break;
      const int blocks = columns % 2 == 0 ? 2 : 1;
      const auto got = Multiply(kernels, c, weights, rows, valid, 0, blocks, 0, columns, true);
      REQUIRE(got == Multiply(reference, c, weights, rows, valid, 0, blocks, 0, columns));
    }
    for (int columns = 1; columns <= kNarrowColumns; ++columns) {
      const int blocks = columns % 2 + 1;
      const auto got = Multiply(kernels, c, weights, rows, valid, 0, blocks, 0, columns);
      const auto expected = Multiply(reference, c, weights, rows, valid, 0, blocks, 0, columns);
      REQUIRE(got == expected);
    }
  }
}

TEST_CASE("float products lie within the bound of the reference's") {
  const KernelSet* set = GENERATE(from_range(SupportedKernelSets()));
  const auto operand = GENERATE(OperandKind::kSummed, OperandKind::kF8Token);
  const auto numerics = GENERATE(ActivationNumerics::kBF16, ActivationNumerics::kF32);
  const OperandKernels kernels = set->For(operand, numerics);
  const OperandKernels reference = Reference()->For(operand, numerics);
  uint32_t seed = 0;
  for (const Case& c : operand == OperandKind::kF8Token ? Cases({kF8Weights}) : Cases()) {
    INFO(set->name << " numerics " << static_cast<int>(numerics) << " bits " << kBitsOf[c.kind]
                   << " tiles " << c.tiles << " group " << c.group_tiles << " symmetric "
                   << c.symmetric);
    const Weights weights(c.kind, c.tiles, c.group_tiles, c.extreme, ++seed);
    const int64_t valid = c.tiles * 64 - c.tiles % 3;
    std::vector<std::vector<float>> rows;
    for (int i = 0; i < kMaxColumns; ++i) {
      rows.push_back(RandomRow(valid, seed * 10 + static_cast<uint32_t>(i)));
    }
    const bool wide = kernels.wide[c.kind] != nullptr;
    const int most = wide ? kMaxColumns : kNarrowColumns;
    const auto expected = Multiply(reference, c, weights, rows, valid, 0, 2, 0, most);
    const auto got = Multiply(kernels, c, weights, rows, valid, 0, 2, 0, most, wide);
    // The bound by the largest terms: |x| about 12, weights up to 2^(bits - 1) * 0.01 (e4m3: 448)
    // on either side.
    const double most_code = c.kind == kF8Weights ? 448 : 1 << (kBitsOf[c.kind] - 1);
    const double norm = 12 * 0.01 * most_code * std::sqrt(static_cast<double>(valid));
    for (size_t i = 0; i < got.size(); ++i) REQUIRE(std::abs(got[i] - expected[i]) <= 1e-6 * norm);
    // Alone, each column and block is the same to the bit.
    for (int column = 0; column < most; ++column) {
      for (int block = 0; block < 2; ++block) {
        const auto alone = Multiply(kernels, c, weights, rows, valid, block, 1, column, 1);
        REQUIRE(std::equal(alone.begin(), alone.end(),
                           got.begin() + (block * most + column) * kBlockRows));
      }
    }
    for (int columns = 2; columns < most; ++columns) {
      const auto some = Multiply(kernels, c, weights, rows, valid, 0, 1, 0, columns, wide);
      REQUIRE(std::equal(some.begin(), some.end(), got.begin()));
    }
  }
}

// The values of a packed e4m3 row, fp32 or bf16, in the order of channels.
float F8ValueAt(const OperandKernels& kernels, const AlignedBuffer& packed, int64_t k) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(packed.data());
  float value;
  uint16_t bits;
  if (kernels.bytes_per_tile == 64 * 4 + 8) {
    std::memcpy(&value, bytes + k * 4, 4);
    return value;
  }
  std::memcpy(&bits, bytes + k * 2, 2);
  return Bf16ToF32(bits);
}

TEST_CASE("e4m3 rows are packed to the same values by every set") {
  const KernelSet* set = GENERATE(from_range(SupportedKernelSets()));
  INFO(set->name);
  const auto kernels = set->For(OperandKind::kF8Token, ActivationNumerics::kBF16);
  const auto reference = Reference()->For(OperandKind::kF8Token, ActivationNumerics::kBF16);
  const int64_t tiles = 6;
  const std::vector<float> row = RandomRow(tiles * 64, 1);
  for (const int64_t valid : {1, 7, 8, 9, 63, 64, 65, 200, 383, 384}) {
    for (int variant = 0; variant < 7; ++variant) {
      std::vector<float> x(row.begin(), row.begin() + valid);
      const auto at = static_cast<size_t>(valid / 2);
      if (variant == 1) x[at] = std::numeric_limits<float>::quiet_NaN();
      if (variant == 2) x[at] = -std::numeric_limits<float>::infinity();
      if (variant == 3) {
        for (float& value : x) value *= 1e-33f;
      }
      if (variant == 4) {  // scale 1, then halves of steps, which go to the even one
        x[0] = 448;
        for (size_t i = 1; i < x.size(); ++i) x[i] = static_cast<float>(i) * 0x1p-10f;
      }
      if (variant == 5) {  // above 2^-6, where a step grows with the value
        x[0] = -448;
        for (size_t i = 1; i < x.size(); ++i) {
          x[i] = std::ldexp(static_cast<float>(16 + i % 16) * (i % 2 == 0 ? 1.0f : -1.0f),
                            static_cast<int>(i / 16 % 13) - 10);
        }
      }
      if (variant == 6) {  // most of them below any step
        for (size_t i = 1; i < x.size(); ++i) x[i] *= 1e-6f;
      }
      AlignedBuffer got = Buffer(tiles * kernels.bytes_per_tile);
      AlignedBuffer expected = Buffer(tiles * reference.bytes_per_tile);
      kernels.pack(x.data(), valid, tiles * kTilePieces, Bytes(got));
      reference.pack(x.data(), valid, tiles * kTilePieces, Bytes(expected));
      for (int64_t k = 0; k < tiles * 64; ++k) {
        INFO("valid " << valid << " variant " << variant << " channel " << k);
        REQUIRE(std::bit_cast<uint32_t>(F8ValueAt(kernels, got, k)) ==
                std::bit_cast<uint32_t>(F8ValueAt(reference, expected, k)));
      }
      REQUIRE(std::memcmp(got.data() + tiles * (kernels.bytes_per_tile - 8),
                          expected.data() + tiles * (reference.bytes_per_tile - 8),
                          static_cast<size_t>(tiles * 8)) == 0);
    }
  }
}

// Row r of block b holds code 16 b + r at every channel: against one activation of 448, whose code
// is the largest, the product is the code's value times 448, which is exact.
TEST_CASE("every e4m3 code is its value in every set") {
  const KernelSet* set = GENERATE(from_range(SupportedKernelSets()));
  INFO(set->name);
  const auto kernels = set->For(OperandKind::kF8Token, ActivationNumerics::kBF16);
  const Case c = {kF8Weights, 1, 1, 1, true};
  for (int first = 0; first < 256; first += 32) {
    Weights weights(kF8Weights, 1, 1, false, 1);
    for (uint16_t& scale : weights.scales) scale = F32ToBf16(1.0f);
    for (int b = 0; b < 2; ++b) {
      for (int64_t i = 0; i < weights.block_bytes; ++i) {
        const int64_t row = i / 8 % 32 / 4 + i / 4 % 2 * 8;  // docs/reference/layout.md, 8 bits
        Bytes(weights.codes)[b * weights.block_bytes + i] =
            static_cast<uint8_t>(first + b * 16 + row);
      }
    }
    for (const int64_t channel : {0, 1, 8, 9, 22, 47, 63}) {
      std::vector<std::vector<float>> rows(1, std::vector<float>(64, 0.0f));
      rows[0][static_cast<size_t>(channel)] = 448;
      const auto got = Multiply(kernels, c, weights, rows, 64, 0, 2, 0, 1);
      for (int i = 0; i < 32; ++i) {
        const auto code = static_cast<uint8_t>(first + i);
        if ((code & 0x7f) == 0x7f) continue;  // NaN, which no record holds
        INFO("code " << int{code} << " channel " << channel);
        REQUIRE(got[static_cast<size_t>(i)] == F8E4M3ToF32(code) * 448);
      }
    }
  }
}

}  // namespace
}  // namespace moert::kernels
