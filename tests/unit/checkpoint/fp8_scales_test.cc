// fp8 weights with a scale a block, a row or a tensor.
#include <nlohmann/json.hpp>

#include "base/bf16.h"
#include "moert/offline/checkpoint.h"
#include "support/catch.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using test::Safetensors;
using test::TempDir;
using test::WriteFile;

TEST_CASE("fp8 weights are multiplied by the scale of their block, wherever a read begins") {
  // Two matrices of 130 x 300 in blocks of 128 x 128: the last ones are cut in both directions.
  constexpr int64_t kRows = 130, kCols = 300, kScaleCols = 3;
  std::string data(2 * kRows * kCols, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 % 127);  // no NaN
  std::vector<float> scales;
  for (int i = 0; i < 2 * 2 * kScaleCols; ++i) scales.push_back(0.25f * static_cast<float>(i + 1));
  const size_t end = data.size() + scales.size() * 4;
  nlohmann::json header = {
      {"w",
       {{"dtype", "F8_E4M3"}, {"shape", {2, kRows, kCols}}, {"data_offsets", {0, data.size()}}}},
      {"w_scale_inv",
       {{"dtype", "F32"}, {"shape", {2, 2, kScaleCols}}, {"data_offsets", {data.size(), end}}}}};
  TempDir dir;
  WriteFile(
      dir / "x.safetensors",
      Safetensors(header.dump(), data + std::string(reinterpret_cast<const char*>(scales.data()),
                                                    scales.size() * 4)));
  const auto c = Checkpoint::Open(dir / "x.safetensors");
  REQUIRE_OK(c.status());
  std::vector<float> expected;
  for (int64_t i = 0; i < 2 * kRows * kCols; ++i) {
    const int64_t row = i / kCols % kRows, matrix = i / kCols / kRows, col = i % kCols;
    const float scale = scales[(matrix * 2 + row / 128) * kScaleCols + col / 128];
    expected.push_back(F8E4M3ToF32(static_cast<uint8_t>(data[i])) * scale);
  }
  CHECK(*(*c)->ReadF32("w", {2, kRows, kCols}) == expected);
  for (const int64_t first : {1, 127, 128, 299, 300, 128 * 300 - 1, 130 * 300 + 5}) {
    std::vector<float> part(37'000);
    REQUIRE_OK((*c)->ReadAsF32(**(*c)->Get("w"), first, absl::MakeSpan(part)));
    CHECK(std::equal(part.begin(), part.end(), expected.begin() + first));
    std::vector<uint16_t> rounded(500);
    REQUIRE_OK((*c)->ReadAsBf16(**(*c)->Get("w"), first, absl::MakeSpan(rounded)));
    CHECK(rounded[499] == F32ToBf16(expected[first + 499]));
  }
}

TEST_CASE("fp8 weights are multiplied by the scale of their row, or of them all") {
  const std::string codes = "\x38\x40\x38\x40\x30\xb8\x38\x40";  // 1, 2, 1, 2, 0.5, -1, 1, 2
  const std::vector<float> values = {1, 2, 1, 2, 0.5f, -1, 1, 2};
  struct Case {
    const char* scale;  // a name and an entry without its offsets
    std::string bytes;
    std::vector<float> of_row;
  };
  const std::string rows("\x80\x3f\x00\x40\x80\x40\x00\x41", 8);  // bf16: 1, 2, 4, 8
  const std::string four = "\x80\x40";
  const Case cases[] = {
      {R"("w_scale":{"dtype":"BF16","shape":[2,2,1])", rows, {1, 2, 4, 8}},
      {R"("w_scale":{"dtype":"BF16","shape":[2,2])", rows, {1, 2, 4, 8}},
      {R"("w_scale":{"dtype":"BF16","shape":[])", four, {4, 4, 4, 4}},
      {R"("w_scale":{"dtype":"BF16","shape":[1])", four, {4, 4, 4, 4}},
      {R"("w_scale_inv":{"dtype":"F8_E8M0","shape":[2,1,1])", "\x7e\x82", {0.5f, 0.5f, 8, 8}},
  };
  TempDir dir;
  for (const Case& k : cases) {
    INFO(k.scale);
    const size_t end = 8 + k.bytes.size();
    WriteFile(dir / "x.safetensors",
              Safetensors(R"({"w":{"dtype":"F8_E4M3","shape":[2,2,2],"data_offsets":[0,8]},)" +
                              std::string(k.scale) + R"(,"data_offsets":[8,)" +
                              std::to_string(end) + "]}}",
                          codes + k.bytes));
    const auto c = Checkpoint::Open(dir / "x.safetensors");
    REQUIRE_OK(c.status());
    REQUIRE_OK((*c)->CheckWeightType(**(*c)->Get("w")));
    const auto read = (*c)->ReadF32("w", {2, 2, 2});
    REQUIRE_OK(read.status());
    for (size_t i = 0; i < 8; ++i) CHECK((*read)[i] == values[i] * k.of_row[i / 2]);
  }
}

}  // namespace
}  // namespace moert
