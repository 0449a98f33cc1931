// A slice of a record holds what the whole one does, in every scheme.
#include "source/shard_source.h"

#include <vector>

#include "quant/packing.h"
#include "support/catch.h"
#include "support/expert_record.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using test::ExpertRecord;
using test::RandomExpert;

std::vector<float> Unpacked(const MatrixLayout& matrix, const std::byte* record) {
  std::vector<float> values;
  REQUIRE_OK(UnpackMatrix(matrix, record, &values));
  return values;
}

/// Rows [row, row + rows) and columns [col, col + cols) of a matrix of `width` columns.
std::vector<float> Part(const std::vector<float>& all, int64_t width, int64_t row, int64_t rows,
                        int64_t col, int64_t cols) {
  std::vector<float> part;
  for (int64_t r = row; r < row + rows; ++r) {
    for (int64_t c = col; c < col + cols; ++c) part.push_back(all[r * width + c]);
  }
  return part;
}

std::vector<ExpertFormat> Formats() {
  std::vector<ExpertFormat> formats;
  for (const Scheme& scheme : Scheme::All()) formats.push_back(ExpertFormat::Uniform(scheme));
  formats.push_back(
      {*Scheme::Parse("bf16"), *Scheme::Parse("w4a8_g128"), *Scheme::Parse("w3a16_g128_asym")});
  formats.push_back(ExpertFormat::Uniform(*Scheme::Parse("w4a4_g128"), /*hadamard=*/true));
  return formats;
}

TEST_CASE("a slice of a record is a slice of its matrices") {
  constexpr int64_t kHidden = 72, kIntermediate = 320;
  for (const ExpertFormat& format : Formats()) {
    if (format.down.imported()) continue;  // refused: unit.engine.shard_test
    const ExpertRecord whole = RandomExpert(kHidden, kIntermediate, 5, format);
    for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 128}, {128, 128}, {256, 64}, {128, 192}, {0, kIntermediate}}) {
      CAPTURE(format.gate.Name(), format.down.Name(), first, count);
      const RecordLayout layout = *MakeRecordLayout(kHidden, count, format);
      std::vector<std::byte> part(static_cast<size_t>(layout.bytes));
      SliceRecord(whole.layout, whole.record(), first, layout, part.data());
      CHECK(Unpacked(layout.gate, part.data()) ==
            Part(Unpacked(whole.layout.gate, whole.record()), kHidden, first, count, 0, kHidden));
      CHECK(Unpacked(layout.up, part.data()) ==
            Part(Unpacked(whole.layout.up, whole.record()), kHidden, first, count, 0, kHidden));
      CHECK(Unpacked(layout.down, part.data()) == Part(Unpacked(whole.layout.down, whole.record()),
                                                       kIntermediate, 0, kHidden, first, count));
    }
  }
}

TEST_CASE("slices that a format does not allow are refused with what it would") {
  test::SyntheticShape shape;
  shape.intermediate = 256;
  shape.shared_intermediate = 96;
  const auto source = std::make_shared<test::SyntheticSource>(shape);
  ShardPlan plan;
  const auto message = [&](int64_t first, int64_t count) {
    plan.first_channel = first;
    plan.num_channels = count;
    const auto shard = MakeShardSource(source, plan);
    CHECK(shard.status().code() == absl::StatusCode::kInvalidArgument);
    return std::string(shard.status().message());
  };
  CHECK(message(32, 64).find("channels [32, 96) of layer 0") != std::string::npos);
  CHECK(message(32, 64).find("multiples of 64") != std::string::npos);
  CHECK(message(192, 128).find("layer 0 has 256") != std::string::npos);
  CHECK(message(0, 64).find("layer 0's shared experts") != std::string::npos);
  plan.shared_experts = false;
  plan.first_channel = 0;
  plan.num_channels = 64;
  CHECK(MakeShardSource(source, plan).ok());
}

}  // namespace
}  // namespace moert
