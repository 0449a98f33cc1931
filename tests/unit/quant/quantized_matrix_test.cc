// Codes of every width survive packing, land where docs/reference/layout.md says, and rounding
// loses what it must.
#include "quant/quantized_matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "base/bf16.h"
#include "offline/rtn.h"
#include "quant/packing.h"
#include "support/catch.h"

namespace moert {
namespace {

std::vector<Scheme> QuantizedSchemes() {
  std::vector<Scheme> schemes;
  for (const Scheme& s : Scheme::All()) {
    if (!s.is_bf16()) schemes.push_back(s);
  }
  return schemes;
}

std::vector<float> Normal(int64_t n, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<float> values(n);
  for (float& v : values) v = normal(rng);
  return values;
}

TEST_CASE("codes and scales of every scheme and odd shapes survive a record") {
  for (const Scheme& scheme : QuantizedSchemes()) {
    for (const auto& [hidden, intermediate] :
         std::vector<std::pair<int64_t, int64_t>>{{128, 64}, {256, 128}, {72, 40}, {200, 17}}) {
      const RecordLayout layout =
          *MakeRecordLayout(hidden, intermediate, ExpertFormat::Uniform(scheme));
      std::vector<std::byte> record(layout.bytes, std::byte{0xee});
      for (const MatrixLayout* m : {&layout.gate, &layout.up, &layout.down}) {
        std::mt19937_64 rng(m->weight_offset + 3);
        QuantizedMatrix q = MakeQuantizedMatrix(*m);
        // 0x7f and 0xff are the NaNs of e4m3.
        const unsigned codes = scheme.fp8 ? 0x7f : 1u << scheme.weight_bits;
        for (uint8_t& c : q.codes) c = static_cast<uint8_t>(rng() % codes);
        for (float& s : q.scales) s = static_cast<float>(1 + rng() % 100) / 128;
        for (float& s : q.offsets) s = static_cast<float>(rng() % 100) / 64;
        if (scheme.imported()) {  // what their types hold
          for (float& s : q.scales) s = DecodeScale(scheme.scales, EncodeScale(scheme.scales, s));
          for (float& s : q.offsets) s = static_cast<float>(rng() % 17);
          if (scheme.scales == ScaleType::kE4M3) q.matrix_scale = 0.3f;
        }
        REQUIRE_OK(PackMatrix(*m, q, record.data()));
        QuantizedMatrix back;
        REQUIRE_OK(UnpackCodes(*m, record.data(), &back));
        INFO(scheme.Name() << " " << m->rows << " x " << m->k);
        CHECK(back.codes == q.codes);
        CHECK(back.scales == q.scales);
        CHECK(back.offsets == q.offsets);
        CHECK(back.matrix_scale == q.matrix_scale);
        std::vector<float> widened;
        REQUIRE_OK(UnpackMatrix(*m, record.data(), &widened));
        CHECK(widened == Dequantize(scheme, q));
      }
    }
  }
}

// Word `word` of a tile, field `bit` on.
void PutField(int64_t word, int64_t k, int64_t bit, unsigned field, std::byte* tile) {
  tile[word * 4 + k % 2 * 2 + k % 16 / 8] |= static_cast<std::byte>(field << bit);
}

// docs/reference/layout.md, code by code.
void PutCode(int bits, int64_t row, int64_t k, unsigned code, std::byte* tile) {
  const int64_t lane = row % 8 * 4 + k % 8 / 2, half = row / 8, k16 = k / 16;
  if (bits == 8) PutField((k16 * 32 + lane) * 2 + half, k, 0, code, tile);
  if (bits == 4) PutField(k16 * 32 + lane, k, 4 * half, code, tile);
  if (bits > 3) return;
  PutField(k16 / 2 * 32 + lane, k, 2 * (2 * (k16 % 2) + half), code & 3, tile);
  if (bits == 3) PutField(64 + lane, k, 2 * k16 + half, code >> 2, tile);
}

TEST_CASE("packed tiles are what single codes make") {
  for (const Scheme& scheme : QuantizedSchemes()) {
    for (const auto& [hidden, intermediate] :
         std::vector<std::pair<int64_t, int64_t>>{{128, 64}, {72, 40}, {200, 17}, {1, 3}}) {
      const RecordLayout layout =
          *MakeRecordLayout(hidden, intermediate, ExpertFormat::Uniform(scheme));
      std::vector<std::byte> record(layout.bytes, std::byte{0xee});
      for (const MatrixLayout* m : {&layout.up, &layout.down}) {
        INFO(scheme.Name() << " " << m->rows << " x " << m->k);
        std::mt19937_64 rng(m->weight_offset + 5);
        QuantizedMatrix q = MakeQuantizedMatrix(*m);
        std::fill(q.scales.begin(), q.scales.end(), 1.0f);
        std::vector<std::byte> expected(m->weight_bytes);
        for (int64_t i = 0; i < m->rows * m->k; ++i) {
          const int64_t row = i / m->k, k = i % m->k;
          const int bits = scheme.weight_bits;
          q.codes[i] = static_cast<uint8_t>(rng() % (1u << bits));
          if (scheme.fp8 && (q.codes[i] & 0x7f) == 0x7f) q.codes[i] = 0xfe;
          const int64_t tile = row / 16 * (m->padded_k / 64) + k / 64;
          PutCode(bits, row % 16, k % 64, q.codes[i], expected.data() + tile * 128 * bits);
        }
        REQUIRE_OK(PackMatrix(*m, q, record.data()));
        const std::byte* weights = record.data() + m->weight_offset;
        CHECK(std::equal(expected.begin(), expected.end(), weights));
      }
    }
  }
}

TEST_CASE("packed scales are what single ones make") {
  for (const Scheme& scheme : QuantizedSchemes()) {
    const ScaleType type = scheme.scales;
    const int64_t width = ScaleBytes(type);
    const RecordLayout layout = *MakeRecordLayout(2048, 200, ExpertFormat::Uniform(scheme));
    const MatrixLayout& m = layout.up;
    INFO(scheme.Name());
    std::mt19937_64 rng(11);
    QuantizedMatrix q = MakeQuantizedMatrix(m);
    for (size_t i = 0; i < q.scales.size(); ++i) {  // rows that vectors take, and others
      float& scale = q.scales[i];
      scale = static_cast<float>(1 + rng() % 200) / 16;
      if (i / q.groups() % 64 < 16) scale = std::bit_cast<float>(static_cast<uint32_t>(rng()));
      if (!scheme.imported() && std::isfinite(scale)) continue;  // is rounded
      const bool any = type == ScaleType::kF32 || !std::isfinite(scale);
      scale = any ? 0.0f : DecodeScale(type, EncodeScale(type, std::fmod(scale, 448.0f)));
      if (!std::isfinite(scale)) scale = 1;
    }
    if (type == ScaleType::kE8M0) std::replace(q.scales.begin(), q.scales.end(), 0.0f, 1.0f);
    for (float& zero : q.offsets) zero = static_cast<float>(rng() % 17);
    std::vector<std::byte> record(layout.bytes, std::byte{0xee});
    REQUIRE_OK(PackScales(m, q, record.data()));
    for (int64_t i = 0; i < m.padded_rows * q.groups(); ++i) {
      const int64_t row = i % m.padded_rows, at = row * q.groups() + i / m.padded_rows;
      uint32_t bits = 0;
      std::memcpy(&bits, record.data() + m.scale_offset + i * width, width);
      REQUIRE(bits == (row < m.rows ? EncodeScale(type, q.scales[at]) : 0));
      if (!scheme.zero_points) continue;
      const float zero = row < m.rows ? q.offsets[at] : 0;
      REQUIRE(std::to_integer<int>(record[m.zero_offset() + i]) == static_cast<int>(zero));
    }
  }
}

TEST_CASE("single codes land where the layout says") {
  const auto where = [](const char* name, int64_t row, int64_t k) {
    const Scheme scheme = *Scheme::Parse(name);
    const RecordLayout layout = *MakeRecordLayout(128, 32, ExpertFormat::Uniform(scheme));
    std::vector<std::byte> record(layout.bytes);
    QuantizedMatrix q = MakeQuantizedMatrix(layout.gate);
    q.codes[row * q.k + k] = static_cast<uint8_t>((1 << scheme.weight_bits) - 1);
    REQUIRE_OK(PackMatrix(layout.gate, q, record.data()));
    std::vector<std::pair<int, int>> bytes;
    for (int64_t i = 0; i < layout.gate.weight_bytes; ++i) {
      const int value = static_cast<int>(record[layout.gate.weight_offset + i]);
      if (value != 0) bytes.push_back({static_cast<int>(i), value});
    }
    return bytes;
  };
  using Bytes = std::vector<std::pair<int, int>>;
  // Row 9 = row g + 8 of g = 1; k = 35 = k16 number 2, position 3: t = 1, byte 2. Lane 1 * 4 + 1
  // = 5.
  CHECK(where("w4a16_g128", 9, 35) == Bytes{{(2 * 32 + 5) * 4 + 2, 0xf0}});
  CHECK(where("w8a16_g128", 9, 35) == Bytes{{(2 * 32 + 5) * 8 + 4 + 2, 0xff}});
  // k32 number 1, its first half, upper row: field 1.
  CHECK(where("w2a16_g64_asym", 9, 35) == Bytes{{(32 + 5) * 4 + 2, 0x0c}});
  // The same two bits, and bit 2 * 2 + 1 of the third plane.
  CHECK(where("w3a16_g128_asym", 9, 35) ==
        Bytes{{(32 + 5) * 4 + 2, 0x0c}, {256 + 5 * 4 + 2, 0x20}});
  // The second tile of 64 k, and the second row block, follow whole tiles.
  CHECK(where("w4a16_g128", 9, 64 + 35) == Bytes{{512 + (2 * 32 + 5) * 4 + 2, 0xf0}});
  CHECK(where("w4a16_g128", 16, 0) == Bytes{{1024, 0x0f}});
}

TEST_CASE("rounding to nearest is within half a step without clipping, and better with it") {
  const std::vector<float> weights = Normal(64 * 256, 5);
  double previous = 0;
  for (const char* name :
       {"w8a16_g128", "w4a16_g128_asym", "w4a16_g128", "w3a16_g128_asym", "w2a16_g128_asym"}) {
    const Scheme scheme = *Scheme::Parse(name);
    const RecordLayout layout = *MakeRecordLayout(256, 64, ExpertFormat::Uniform(scheme));
    RtnOptions plain;
    plain.grid = 1;
    double error[2] = {0, 0};
    for (const int clipped : {0, 1}) {
      const QuantizedMatrix q = QuantizeRtn(layout.gate, weights, clipped ? RtnOptions{} : plain);
      const std::vector<float> back = Dequantize(scheme, q);
      for (size_t i = 0; i < weights.size(); ++i) {
        const double e = std::fabs(back[i] - weights[i]);
        error[clipped] += std::pow(e, 2.4);
        // bf16 rounding of scale and offset moves a step by at most 2^-8 of the range.
        const float scale = q.scales[i / 256 * q.groups() + i % 256 / q.group];
        if (!clipped) REQUIRE(e <= 0.5 * scale + 0.005 * (1 << scheme.weight_bits) * scale);
      }
    }
    INFO(name << " " << error[0] << " " << error[1]);
    CHECK(error[1] <= error[0]);
    if (scheme.weight_bits <= 3) CHECK(error[1] < 0.9 * error[0]);
    CHECK(error[1] > previous);
    previous = error[1];
  }
}

TEST_CASE("degenerate groups: zeros, one value, one sign") {
  for (const Scheme& scheme : QuantizedSchemes()) {
    const RecordLayout layout = *MakeRecordLayout(64, 16, ExpertFormat::Uniform(scheme));
    std::vector<float> weights(64 * 16, 0);
    for (int64_t c = 0; c < 64; ++c) {
      weights[64 + c] = 0.25f;                       // row 1: constant
      weights[2 * 64 + c] = 0.01f * (float)(c + 1);  // row 2: positive
      weights[3 * 64 + c] = -0.01f * (float)(c + 1);
    }
    weights[4 * 64 + 7] = 3.0f;  // row 4: one outlier
    const QuantizedMatrix q = QuantizeRtn(layout.gate, weights);
    std::vector<std::byte> record(layout.bytes);
    REQUIRE_OK(PackMatrix(layout.gate, q, record.data()));
    const std::vector<float> back = Dequantize(scheme, q);
    INFO(scheme.Name());
    for (int64_t c = 0; c < 64; ++c) {
      CHECK(std::isfinite(back[64 + c]));
      CHECK(back[c] == 0);
      CHECK(std::fabs(back[64 + c] - 0.25f) < 0.04f);
    }
    CHECK(std::fabs(back[4 * 64 + 7] - 3.0f) < 1.6f);
  }
}

TEST_CASE("a scale becomes the nearest that its type has") {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> exponent(-12, 10);
  for (int i = 0; i < 20000; ++i) {
    const float scale = i < 126 * 2 ? (F8E4M3ToF32(static_cast<uint8_t>(i / 2)) +
                                       F8E4M3ToF32(static_cast<uint8_t>((i + 1) / 2))) /
                                          2
                                    : std::exp2(exponent(random));
    INFO(scale);
    const float stored = DecodeScale(ScaleType::kE4M3, EncodeScale(ScaleType::kE4M3, scale));
    float nearest = 0;  // the lower of two
    for (uint8_t code = 1; code < 0x7f; ++code) {
      const float value = F8E4M3ToF32(code);
      if (std::fabs(value - scale) < std::fabs(nearest - scale)) nearest = value;
    }
    REQUIRE(stored == nearest);
    if (scale == 0) continue;
    const float power = std::exp2(std::nearbyint(std::log2(scale)));
    REQUIRE(DecodeScale(ScaleType::kE8M0, EncodeScale(ScaleType::kE8M0, scale)) == power);
    REQUIRE(DecodeScale(ScaleType::kE8M0, EncodeScale(ScaleType::kE8M0, power)) == power);
  }
  CHECK(DecodeScale(ScaleType::kE4M3, EncodeScale(ScaleType::kE4M3, 1e10f)) == 448);
}

TEST_CASE("what does not fit a layout is refused by name") {
  const Scheme scheme = *Scheme::Parse("w4a16_g128");
  const RecordLayout layout = *MakeRecordLayout(128, 32, ExpertFormat::Uniform(scheme));
  std::vector<std::byte> record(layout.bytes);
  QuantizedMatrix q = MakeQuantizedMatrix(layout.gate);
  q.codes[5 * 128 + 9] = 16;
  CHECK_THAT(std::string(PackMatrix(layout.gate, q, record.data()).message()),
             Catch::Contains("code 16 at row 5, k 9"));
  q = MakeQuantizedMatrix(layout.gate);
  q.codes[20 * 128 + 70] = 255;
  CHECK_THAT(std::string(PackMatrix(layout.gate, q, record.data()).message()),
             Catch::Contains("code 255 at row 20, k 70"));
  q = MakeQuantizedMatrix(layout.gate);
  q.scales[3] = std::nanf("");
  CHECK_THAT(std::string(PackMatrix(layout.gate, q, record.data()).message()),
             Catch::Contains("row 3, group 0 is not finite"));
  q = MakeQuantizedMatrix(layout.down);
  CHECK_THAT(std::string(PackMatrix(layout.gate, q, record.data()).message()),
             Catch::Contains("was given 128 x 32"));
  q = MakeQuantizedMatrix(layout.gate);
  q.codes.pop_back();
  CHECK_THAT(std::string(PackMatrix(layout.gate, q, record.data()).message()),
             Catch::Contains("was given 4095 codes"));
  // Nothing of an imported scheme is rounded on its way into a record.
  for (const char* name : {"w4a16_g32_zp_f16", "mxfp4", "nvfp4"}) {
    const RecordLayout l = *MakeRecordLayout(128, 32, ExpertFormat::Uniform(*Scheme::Parse(name)));
    QuantizedMatrix imported = MakeQuantizedMatrix(l.gate);
    for (float& s : imported.scales) s = 0.5f;
    std::vector<std::byte> bytes(l.bytes);
    REQUIRE_OK(PackMatrix(l.gate, imported, bytes.data()));
    imported.scales[imported.groups() * 2 + 1] = 0.1f;
    CHECK_THAT(std::string(PackMatrix(l.gate, imported, bytes.data()).message()),
               Catch::Contains("row 2, group 1: scale 0.1"));
  }
  const RecordLayout f8 =
      *MakeRecordLayout(128, 32, ExpertFormat::Uniform(*Scheme::Parse("w8a8_fp8")));
  record.resize(static_cast<size_t>(f8.bytes));
  q = MakeQuantizedMatrix(f8.up);
  q.codes[2 * 128 + 1] = 0xff;
  CHECK_THAT(std::string(PackMatrix(f8.up, q, record.data()).message()),
             Catch::Contains("code 255 at row 2, k 1 is no number"));
}

}  // namespace
}  // namespace moert
