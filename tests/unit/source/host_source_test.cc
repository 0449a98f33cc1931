// A host source packs what it is given row by row exactly as the whole matrix would be packed.
#include "moert/source/host_source.h"

#include <atomic>
#include <cstring>
#include <stdexcept>

#include "base/bf16.h"
#include "quant/packing.h"
#include "support/catch.h"

namespace moert {
namespace {

MoeModelSpec OneLayer(int64_t hidden, int64_t intermediate, int64_t shared) {
  MoeModelSpec model;
  MoeLayerSpec layer;
  layer.num_experts = 3;
  layer.hidden = hidden;
  layer.intermediate = intermediate;
  layer.shared_intermediate = shared;
  layer.shared_gate = shared > 0;
  layer.routing.selection_bias = true;
  model.layers.push_back(layer);
  return model;
}

float Weight(int expert, WeightPart part, int64_t index) {
  const int64_t h = (index * 7919 + expert * 104729 + static_cast<int>(part) * 1299709) % 2001;
  return static_cast<float>(h - 1000) / 512.0f;
}

absl::Status Fill(const WeightRead& read) {
  for (int64_t i = 0; i < read.rows * read.cols; ++i) {
    const float w = Weight(read.expert, read.part, read.first_row * read.cols + i);
    if (read.dtype == DType::kF32) static_cast<float*>(read.dst)[i] = w;
    if (read.dtype == DType::kBF16) static_cast<uint16_t*>(read.dst)[i] = F32ToBf16(w);
    if (read.dtype == DType::kF16) static_cast<uint16_t*>(read.dst)[i] = F32ToF16(w);
  }
  return absl::OkStatus();
}

std::vector<std::byte> PackedWhole(const RecordLayout& layout, int expert, DType dtype) {
  std::vector<std::byte> record(static_cast<size_t>(layout.bytes));
  const std::pair<WeightPart, const MatrixLayout*> parts[] = {
      {WeightPart::kGateProj, &layout.gate},
      {WeightPart::kUpProj, &layout.up},
      {WeightPart::kDownProj, &layout.down}};
  for (const auto& [part, m] : parts) {
    std::vector<float> whole(static_cast<size_t>(m->rows * m->k));
    for (size_t i = 0; i < whole.size(); ++i) {
      const float w = Weight(expert, part, static_cast<int64_t>(i));
      whole[i] = dtype == DType::kF16 ? F16ToF32(F32ToF16(w)) : w;
    }
    REQUIRE_OK(PackMatrixBf16(*m, absl::MakeConstSpan(whole), record.data()));
  }
  return record;
}

TEST_CASE("pieces of a matrix pack to the same record as the whole") {
  const DType dtype = GENERATE(DType::kF32, DType::kBF16, DType::kF16);
  // One piece; several pieces with a short last one; rows and columns that need padding.
  const auto [hidden, intermediate] =
      GENERATE(std::pair<int64_t, int64_t>{64, 48}, std::pair<int64_t, int64_t>{4096, 200},
               std::pair<int64_t, int64_t>{100, 3001});
  const auto source = MakeHostSource("test", OneLayer(hidden, intermediate, 72), {Fill, dtype, {}});
  REQUIRE_OK(source.status());
  REQUIRE((*source)->num_versions() == 1);
  CHECK((*source)->version_name(0) == "bf16");
  const RecordLayout& layout = (*source)->layout(0, 2, 0);
  std::vector<std::byte> record(static_cast<size_t>(layout.bytes), std::byte{0xab});
  REQUIRE_OK((*source)->ReadRecord(0, 2, 0, absl::MakeSpan(record)));
  CHECK(record == PackedWhole(layout, 2, dtype));

  const auto constants = (*source)->ReadConstants(0);
  REQUIRE_OK(constants.status());
  CHECK(constants->gate.size() == static_cast<size_t>(3 * hidden));
  CHECK(constants->gate[5] == Weight(0, WeightPart::kRouter, 5));
  CHECK(constants->selection_bias == std::vector<float>{Weight(0, WeightPart::kSelectionBias, 0),
                                                        Weight(0, WeightPart::kSelectionBias, 1),
                                                        Weight(0, WeightPart::kSelectionBias, 2)});
  CHECK(constants->shared_gate.size() == static_cast<size_t>(hidden));
  CHECK(constants->shared_expert == PackedWhole(constants->shared_layout, kSharedExpert, dtype));
}

TEST_CASE("no read asks for more than the scratch the budget paid for") {
  std::atomic<int64_t> most{0};
  HostWeights weights;
  weights.dtype = DType::kF32;
  weights.read = [&](const WeightRead& read) {
    if (read.part <= WeightPart::kDownProj) most = std::max<int64_t>(most, read.bytes());
    return Fill(read);
  };
  const auto source = MakeHostSource("test", OneLayer(1024, 3000, 0), weights);
  REQUIRE_OK(source.status());
  std::vector<std::byte> record(static_cast<size_t>((*source)->layout(0, 0, 0).bytes));
  REQUIRE_OK((*source)->ReadRecord(0, 0, 0, absl::MakeSpan(record)));
  CHECK(most > 0);
  CHECK(most <= (*source)->scratch_bytes());
}

TEST_CASE("packed records pass through, each in its version") {
  HostWeights weights;
  weights.schemes = {"w8a16_g128", "w4a16_g128"};
  weights.read = [](const WeightRead& read) -> absl::Status {
    if (read.part != WeightPart::kRecord) return Fill(read);
    std::memset(read.dst, read.version + 1, static_cast<size_t>(read.bytes()));
    return absl::OkStatus();
  };
  const auto source = MakeHostSource("test", OneLayer(256, 128, 0), weights);
  REQUIRE_OK(source.status());
  REQUIRE((*source)->num_versions() == 2);
  CHECK((*source)->scratch_bytes() == 0);
  for (int v = 0; v < 2; ++v) {
    std::vector<std::byte> record(static_cast<size_t>((*source)->layout(0, 1, v).bytes));
    REQUIRE_OK((*source)->ReadRecord(0, 1, v, absl::MakeSpan(record)));
    CHECK(record.front() == static_cast<std::byte>(v + 1));
    CHECK(record.back() == static_cast<std::byte>(v + 1));
  }
}

TEST_CASE("pinned records are used where they lie, misaligned ones are read") {
  HostWeights weights;
  weights.schemes = {"w8a16_g128", "w4a16_g128"};
  weights.read = Fill;
  alignas(kRecordAlignment) static std::byte memory[2 * kRecordAlignment];
  weights.pinned_record = [](int, int expert, int version) -> const std::byte* {
    return expert == 0 ? nullptr : memory + version * (kRecordAlignment / 2);
  };
  const auto source = *MakeHostSource("test", OneLayer(256, 128, 0), weights);
  CHECK(source->PinnedRecord(0, 0, 0) == nullptr);
  CHECK(source->PinnedRecord(0, 1, 0) == memory);
  CHECK(source->PinnedRecord(0, 1, 1) == nullptr);
  weights.schemes = {};
  CHECK_THAT(std::string(MakeHostSource("test", OneLayer(256, 128, 0), weights).status().message()),
             Catch::Contains("pinned_record without schemes"));
}

TEST_CASE("what is wrong is named") {
  const auto message = [](HostWeights weights) {
    return std::string(MakeHostSource("mine", OneLayer(64, 48, 0), weights).status().message());
  };
  CHECK_THAT(message({nullptr, DType::kF32, {}}), Catch::Contains("read function"));
  CHECK_THAT(message({Fill, DType::kI32, {}}), Catch::Contains("dtype i32"));
  CHECK_THAT(message({Fill, DType::kF32, {"w4a16_g128", "bf16"}}),
             Catch::Contains("bf16 is larger than w4a16_g128"));
  CHECK_THAT(message({Fill, DType::kF32, {"nonsense"}}), Catch::Contains("nonsense"));

  const auto read = [](std::function<absl::Status(const WeightRead&)> f) {
    const auto source =
        MakeHostSource("mine", OneLayer(64, 48, 0), {std::move(f), DType::kF32, {}});
    REQUIRE_OK(source.status());
    std::vector<std::byte> record(static_cast<size_t>((*source)->layout(0, 0, 0).bytes));
    return (*source)->ReadRecord(0, 2, 0, absl::MakeSpan(record));
  };
  const absl::Status lost = read([](const WeightRead&) { return absl::DataLossError("gone"); });
  CHECK(lost.code() == absl::StatusCode::kDataLoss);
  CHECK(lost.message() == "mine layer 0 expert 2 gate_proj: gone");
  const absl::Status threw =
      read([](const WeightRead&) -> absl::Status { throw std::runtime_error("no"); });
  CHECK(threw.code() == absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace moert
