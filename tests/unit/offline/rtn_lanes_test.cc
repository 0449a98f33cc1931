// Rounding by vector instructions chooses the same scales and codes as the scalar code, to the bit.
#include "offline/rtn_lanes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "offline/hqq.h"
#include "offline/rtn.h"
#include "support/catch.h"
#include "support/random_weights.h"

namespace moert {
namespace {

bool SameBits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

/// Every instruction set of this processor, not only the best one.
std::vector<const RtnLanes*> LaneSets() {
  std::vector<const RtnLanes*> sets;
  for (const RtnLanes* const* set = RtnLaneSets(); *set != nullptr; ++set) sets.push_back(*set);
  if (sets.empty()) WARN("this processor has no AVX2: FitGroup is the scalar code");
  return sets;
}

void RequireScalarCodes(const Scheme& scheme, const GroupScale& group,
                        const std::vector<float>& values, const RtnLanes* lanes) {
  std::vector<uint8_t> codes(values.size());
  RoundGroup(scheme, group, values, codes.data(), lanes);
  for (size_t i = 0; i < values.size(); ++i) {
    INFO(values[i] << " / " << group.scale);
    REQUIRE(codes[i] == RoundToCode(scheme, group, values[i]));
  }
}

TEST_CASE("the vector search finds the scalar search's scale, and the same codes") {
  std::mt19937 random(7);
  RtnOptions few;  // candidates of another grid
  few.grid = 37;
  few.smallest = 0.45;
  for (const Scheme& scheme : Scheme::All()) {
    if (scheme.is_bf16()) continue;
    for (int kind = 0; kind <= 6; ++kind) {
      for (const size_t count : {128, 64, 16, 77, 200}) {
        INFO(scheme.Name() << ", kind " << kind << ", " << count << " values");
        const std::vector<float> values = test::DrawWeights(kind, count, &random);
        for (const RtnOptions& options : {RtnOptions(), few}) {
          const GroupScale scalar = FitGroupScalar(scheme, values, options);
          for (const RtnLanes* lanes : LaneSets()) {
            INFO(lanes->name);
            const GroupScale found = FitGroup(scheme, values, options, lanes);
            REQUIRE(found.scale == scalar.scale);
            REQUIRE(SameBits(found.offset, scalar.offset));
            RequireScalarCodes(scheme, found, values, lanes);
          }
        }
        const GroupScale half = FitHqqScalar(scheme, values, HqqOptions());
        const GroupScale lanes = FitHqq(scheme, values, HqqOptions());
        REQUIRE(lanes.scale == half.scale);
        REQUIRE(SameBits(lanes.offset, half.offset));
      }
    }
  }
}

TEST_CASE(
    "values near the middle of two floats, and beyond the largest, get the scalar code's codes") {
  for (const char* name : {"fp8_b128", "mxfp4"}) {
    INFO(name);
    const auto scheme = Scheme::Parse(name);
    REQUIRE(scheme.ok());
    const int codes = scheme->fp8 ? 0x7e : 7;
    std::vector<float> values;
    for (int code = 0; code < codes; ++code) {
      const GroupScale one = {1, 0};
      const float middle = (RestoreCode(*scheme, one, static_cast<uint8_t>(code)) +
                            RestoreCode(*scheme, one, static_cast<uint8_t>(code + 1))) /
                           2;
      for (const float sign : {1.0f, -1.0f}) {
        for (const float toward : {0.0f, 1000.0f})
          values.push_back(sign * std::nextafter(middle, toward));
        values.push_back(sign * middle);
        values.push_back(sign * RestoreCode(*scheme, one, static_cast<uint8_t>(code + 1)) * 1.7f);
      }
    }
    for (const float scale : {1.0f, 0.25f, 0.37f}) {
      std::vector<float> scaled = values;
      for (float& v : scaled) v *= scale;
      for (const RtnLanes* lanes : LaneSets()) {
        INFO(lanes->name);
        RequireScalarCodes(*scheme, {scale, 0}, scaled, lanes);
      }
    }
  }
}

TEST_CASE("groups that are fitted together get the scales that each gets alone") {
  std::mt19937 random(11);
  for (const char* name : {"w4a16_g128", "w2a16_g64_asym", "w8a8", "w3a16_g-1_asym", "mxfp4"}) {
    const auto scheme = Scheme::Parse(name);
    REQUIRE(scheme.ok());
    // Neither the rows nor the groups of a row fill whole vectors; a row's last group is short.
    const RecordLayout record = *MakeRecordLayout(200, 21, ExpertFormat::Uniform(*scheme));
    const MatrixLayout& layout = record.gate;
    std::vector<float> weights;
    for (int64_t row = 0; row < layout.rows; ++row) {
      const std::vector<float> values = test::DrawWeights(static_cast<int>(row % 7), 200, &random);
      weights.insert(weights.end(), values.begin(), values.end());
    }
    std::fill(weights.begin() + 400, weights.begin() + 600, 0.25f);
    const QuantizedMatrix together = QuantizeHqq(layout, weights);
    const QuantizedMatrix alone =
        QuantizeGroups(layout, weights, [&](absl::Span<const float> values) {
          return FitHqqScalar(*scheme, values, HqqOptions());
        });
    INFO(name);
    REQUIRE(together.codes == alone.codes);
    REQUIRE(together.scales == alone.scales);
    REQUIRE(together.offsets == alone.offsets);
  }
}

TEST_CASE("a group of zeros has no scale") {
  const std::vector<float> zeros(128, 0.0f);
  const auto scheme = Scheme::Parse("w4a16_g128");
  REQUIRE(FitGroup(*scheme, zeros, RtnOptions()).scale == 0);
}

}  // namespace
}  // namespace moert
