// GPTQ in act-order: g_idx says which group a channel belongs to. Records have no such order; what
// becomes bf16 or is rounded anew takes any.
#include <cstring>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "moert/offline/linear_weight.h"
#include "moert/offline/open_as.h"
#include "quant/packing.h"
#include "support/catch.h"
#include "support/heap_peak.h"
#include "support/quantized_fixture.h"

namespace moert {
namespace {

using test::EditCheckpoint;
using test::EditTensor;
using test::QuantizedDir;
using test::RecordBuffer;
using test::TempDir;

constexpr int64_t kRows = 32, kChannels = 256, kGroup = 64, kGroups = 4;
const std::string kForm = "gptq_g64_zeros";
const std::string kName = "model.layers.0.mlp.experts.0.gate_proj";

/// The group of each channel.
using Groups = std::vector<int32_t>;

Groups Interleaved() {
  Groups groups;
  for (int32_t i = 0; i < kChannels; ++i) groups.push_back(i % kGroups);
  return groups;
}

void SetOrder(const Groups& groups, EditCheckpoint* tensors) {
  std::memcpy((*tensors)[kName + ".g_idx"].bytes.data(), groups.data(), 4 * groups.size());
}

/// Gives all groups the scales and zeros of one.
void SpreadGroup(int64_t group, EditCheckpoint* tensors) {
  for (const char* part : {".scales", ".qzeros"}) {
    std::string& bytes = (*tensors)[kName + part].bytes;
    const size_t row = bytes.size() / kGroups;
    const std::string one = bytes.substr(static_cast<size_t>(group) * row, row);
    bytes.clear();
    for (int64_t g = 0; g < kGroups; ++g) bytes += one;
  }
}

/// A model whose first matrix is edited.
template <typename Edit>
void Write(const TempDir& dir, const Edit& edit) {
  EditCheckpoint tensors = test::ReadForEdit(QuantizedDir(kForm));
  edit(&tensors);
  test::WriteFile(dir / "config.json", test::ReadFile(QuantizedDir(kForm) + "/config.json"));
  test::WriteFile(dir / "model.safetensors", test::ToSafetensors(tensors));
}

absl::StatusOr<std::vector<float>> Values(const TempDir& dir) {
  MOERT_ASSIGN_OR_RETURN(const HfConfig config, test::LoadQuantized(dir.path()));
  MOERT_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(dir.path()));
  MOERT_ASSIGN_OR_RETURN(const auto experts, CheckpointExperts::Create(checkpoint.get(), &config));
  std::vector<float> values;
  MOERT_RETURN_IF_ERROR(experts->ReadWidened(0, 0, Projection::kGate, &values));
  return values;
}

/// The values of act-order, put together of files that have one group's scales throughout.
std::vector<float> Expected(const Groups& order) {
  std::vector<float> expected(kRows * kChannels);
  for (int64_t group = 0; group < kGroups; ++group) {
    TempDir dir;
    Write(dir, [&](EditCheckpoint* t) { SpreadGroup(group, t); });
    const auto values = Values(dir);
    REQUIRE_OK(values.status());
    for (size_t i = 0; i < expected.size(); ++i) {
      if (order[i % kChannels] == group) expected[i] = (*values)[i];
    }
  }
  return expected;
}

TEST_CASE("act-order is widened, channel by channel") {
  TempDir dir;
  Write(dir, [](EditCheckpoint* t) { SetOrder(Interleaved(), t); });
  const std::vector<float> expected = Expected(Interleaved());
  const auto values = Values(dir);
  REQUIRE_OK(values.status());
  CHECK(*values == expected);

  OpenModelOptions options;
  options.widen = true;
  const auto source = OpenModel(dir.path(), options);
  REQUIRE_OK(source.status());
  const RecordLayout& layout = (*source)->layout(0, 0, 0);
  RecordBuffer record(layout.bytes);
  const test::HeapPeak heap;
  REQUIRE_OK((*source)->ReadRecord(0, 0, 0, record.span()));
  CHECK(heap.bytes() <= (*source)->scratch_bytes());
  std::vector<float> gate;
  REQUIRE_OK(UnpackMatrix(layout.gate, record.data(), &gate));
  const HfConfig config = test::QuantizedConfig(dir.path());
  const auto checkpoint = Checkpoint::Open(dir.path());
  REQUIRE_OK(checkpoint.status());
  const auto linear =
      LinearWeight::Open(**checkpoint, config.quantization, kName, kRows, kChannels);
  REQUIRE_OK(linear.status());
  std::vector<float> rows(expected.size());
  REQUIRE_OK(linear->Read(0, absl::MakeSpan(rows)));
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(gate[i] == RoundToBf16(expected[i]));
    CHECK(rows[i] == RoundToBf16(expected[i]));
  }
}

TEST_CASE("act-order is rounded anew") {
  TempDir dir, cache;
  Write(dir, [](EditCheckpoint* t) { SetOrder(Interleaved(), t); });
  OpenAsOptions options;
  options.schemes = {*Scheme::Parse("w8a16_g128")};
  options.cache_dir = cache.path();
  const auto source = OpenModelAs(dir.path(), options);
  REQUIRE_OK(source.status());
  CHECK((*source)->layout(0, 0, 0).gate.scheme == options.schemes[0]);
}

TEST_CASE("act-order is refused as it is opened, with what is left to do") {
  TempDir dir;
  Write(dir, [](EditCheckpoint* t) { SetOrder(Interleaved(), t); });
  const auto source = OpenModel(dir.path(), {});
  CHECK(absl::IsInvalidArgument(source.status()));
  CHECK_THAT(std::string(source.status().message()),
             Catch::Contains(kName + ".g_idx") && Catch::Contains("channel 1 is in group 1") &&
                 Catch::Contains("act-order") && Catch::Contains("--as bf16"));
  for (const int32_t group : {-1, 4}) {
    Groups groups = Interleaved();
    groups[77] = group;
    Write(dir, [&](EditCheckpoint* t) { SetOrder(groups, t); });
    CHECK_THAT(std::string(Values(dir).status().message()),
               Catch::Contains("channel 77 is in group " + std::to_string(group) + " of 4"));
  }
}

}  // namespace
}  // namespace moert
