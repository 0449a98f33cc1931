// Where the parts of an opaque record lie: those in memory are read there, or where they are mapped
// from.
#include "moert/source/opaque_source.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "moert/source/pinned_source.h"
#include "source/shard_source.h"
#include "support/catch.h"
#include "support/opaque_fixture.h"
#include "support/plain_allocator.h"
#include "support/record_buffer.h"
#include "support/temp_dir.h"

namespace moert::test {
namespace {

/// Layer 0 alone, in memory without an alignment but for part 2.
OpaqueWeights Weights(const OpaqueModel& model) {
  OpaqueWeights weights = model.InMemory();
  for (std::vector<OpaquePart>& parts : weights.layers) {
    for (int p = 0; p < 2; ++p) parts[p].alignment = 1;
    parts[2].alignment = 4;
  }
  return weights;
}

std::shared_ptr<const ExpertSource> Made(const OpaqueModel& model, OpaqueWeights weights) {
  auto made = MakeOpaqueSource("toy", model.spec, std::move(weights));
  REQUIRE_OK(made.status());
  return *std::move(made);
}

TEST_CASE("parts in memory are found there at their alignment, whatever lies over the source") {
  const OpaqueModel model;
  const auto source = Made(model, Weights(model));
  for (int p = 0; p < 3; ++p) CHECK(source->HostPart(0, 5, 0, p) == model.At(0, p, 5));
  CHECK(source->HostRecord(0, 5, 0) == nullptr);
  OpaqueWeights strict = Weights(model);
  strict.layers[0][2].alignment = 8;  // expert 5 begins 17100 bytes behind expert 0
  CHECK(Made(model, std::move(strict))->HostPart(0, 5, 0, 2) == nullptr);
  CHECK(Made(model, model.ByCallback())->HostPart(0, 5, 0, 0) == nullptr);

  const auto pinned =
      *PinRecords(source, {.bytes = 2 * kRecordAlignment * 3,  // the first records of a layer
                           .allocator = std::make_shared<PlainAllocator>()});
  const std::byte* const record = pinned->HostRecord(0, 1, 0);
  REQUIRE(record != nullptr);
  CHECK(pinned->HostPart(0, 1, 0, 2) == record + source->layout(0, 1, 0).parts[2].offset);
  CHECK(pinned->HostPart(0, 5, 0, 2) == model.At(0, 2, 5));
  ShardPlan plan;
  plan.experts = {{5, 1}, {0}, {0}};
  plan.all_experts = false;
  const auto shard = *MakeShardSource(pinned, plan);
  CHECK(shard->HostPart(0, 0, 0, 2) == model.At(0, 2, 5));
  CHECK(shard->HostPart(0, 1, 0, 2) == record + source->layout(0, 1, 0).parts[2].offset);
}

TEST_CASE("a part in a file that is mapped, too, is read from the file") {
  const OpaqueModel model;
  const OpaqueModel mapped(/*seed=*/8);  // other bytes: they tell who was read
  const TempDir dir;
  OpaqueWeights weights = Weights(mapped);
  const std::vector<std::byte>& part = model.data[0][1];
  WriteFile(dir / "part",
            "ahead" + std::string(reinterpret_cast<const char*>(part.data()), part.size()));
  weights.files = {dir / "part"};
  OpaquePart& both = weights.layers[0][1];
  both.file = 0;
  both.offset = 5;
  both.memory = mapped.data[0][1].data() - 5;
  const auto source = Made(mapped, std::move(weights));
  CHECK(source->HostPart(0, 5, 0, 1) == mapped.At(0, 1, 5));
  const RecordBuffer record(source->layout(0, 5, 0).bytes);
  REQUIRE_OK(source->ReadRecord(0, 5, 0, record.span()));
  const auto same = [&](const OpaqueModel& of, int p) {
    return std::memcmp(record.data() + source->layout(0, 5, 0).parts[static_cast<size_t>(p)].offset,
                       of.At(0, p, 5), static_cast<size_t>(OpaqueModel::PartBytes(0, p))) == 0;
  };
  CHECK(same(mapped, 0));
  CHECK(same(model, 1));
}

TEST_CASE("zeros follow a part, wherever it comes from") {
  const OpaqueModel model;
  const bool in_memory = GENERATE(false, true);
  OpaqueWeights weights = in_memory ? model.InMemory() : model.ByCallback();
  weights.layers[0][1].zeros = 300;
  const auto source = Made(model, weights);
  const RecordLayout& layout = source->layout(0, 5, 0);
  CHECK(layout.parts[1].bytes == OpaqueModel::PartBytes(0, 1) + 300);
  CHECK(layout.parts[2].offset >= layout.parts[1].offset + layout.parts[1].bytes);
  const RecordBuffer record(layout.bytes);
  for (const bool whole : {true, false}) {
    std::memset(record.data(), 1, static_cast<size_t>(layout.bytes));
    if (whole) REQUIRE_OK(source->ReadRecord(0, 5, 0, record.span()));
    for (int64_t i = 0; i < source->num_pieces(0, 5, 0) && !whole; ++i) {
      REQUIRE_OK(source->ReadPiece(0, 5, 0, i, record.span()));
    }
    const std::byte* const part = record.data() + layout.parts[1].offset;
    const auto bytes = static_cast<size_t>(OpaqueModel::PartBytes(0, 1));
    CHECK(std::memcmp(part, model.At(0, 1, 5), bytes) == 0);
    CHECK(std::vector<std::byte>(part + bytes, part + bytes + 300) ==
          std::vector<std::byte>(300, std::byte{0}));
  }
  weights.layers[0][1].zeros = -1;
  const absl::Status refused = MakeOpaqueSource("toy", model.spec, std::move(weights)).status();
  CHECK(refused.message() == "toy layer 0: part 1: zeros is -1, legal is 0 to 1099511627776");
}

}  // namespace
}  // namespace moert::test
