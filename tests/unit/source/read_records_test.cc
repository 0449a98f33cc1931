// Records that all threads of a pool read: several threads share one record.
#include "source/read_records.h"

#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "moert/source/opaque_source.h"
#include "moert/source/pinned_source.h"
#include "source/shard_source.h"
#include "support/catch.h"
#include "support/meeting.h"
#include "support/plain_allocator.h"
#include "support/record_buffer.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using test::RecordBuffer;
using test::SyntheticShape;
using test::SyntheticSource;

/// Records of 4 pieces, the last of them shorter.
SyntheticShape Shape() {
  SyntheticShape shape;
  shape.layers = 1;
  shape.experts = 6;
  shape.hidden = 448;
  shape.intermediate = 160;
  shape.shared_intermediate = 0;
  return shape;
}

/// Reads some experts of layer 0 by a pool of so many threads.
struct Reader {
  Reader(const ExpertSource& source, const std::vector<int>& experts, int threads) {
    std::vector<RecordRead> reads;
    for (const int e : experts) {
      records.push_back(std::make_unique<RecordBuffer>(source.layout(0, e, 0).bytes));
      reads.push_back({0, e, records.back()->data()});
    }
    const auto pool = *CreateThreadPool({.threads = threads});
    ReadRecords(source, 0, reads, pool.get(), &done);
  }
  bool Same(size_t i, const std::vector<std::byte>& expected) const {
    return std::memcmp(records[i]->data(), expected.data(), expected.size()) == 0;
  }
  std::vector<std::unique_ptr<RecordBuffer>> records;
  std::vector<absl::Status> done;
};

/// The same records as one opaque part in memory and one that a function reads.
std::unique_ptr<ExpertSource> Opaque(const SyntheticSource& from, std::vector<std::byte>* memory) {
  const auto all = std::ssize(from.record(0, 0, 0)), first = all * 3 / 4 / 64 * 64;
  OpaqueWeights weights;
  weights.layers = {{{.bytes = first}, {.bytes = all - first}}};
  for (int e = 0; e < Shape().experts; ++e) {
    const std::vector<std::byte>& record = from.record(0, e, 0);
    memory->insert(memory->end(), record.begin(), record.begin() + first);
  }
  weights.layers[0][0].memory = memory->data();
  weights.read = [&from, first](const OpaqueRead& read) {
    std::memcpy(read.dst, from.record(0, read.expert, 0).data() + first,
                static_cast<size_t>(read.bytes));
    return absl::OkStatus();
  };
  MoeModelSpec model = from.model();
  model.layers[0].routing = {};
  model.layers[0].routing.kind = RoutingKind::kExternal;
  model.layers[0].routing.top_k = 2;
  auto source = MakeOpaqueSource("opaque", model, std::move(weights));
  REQUIRE_OK(source.status());
  return *std::move(source);
}

TEST_CASE("records read in pieces are those that are read whole") {
  const auto from = std::make_shared<SyntheticSource>(Shape());
  std::shared_ptr<const ExpertSource> source;
  std::vector<std::byte> memory;
  std::vector<int> numbers{0, 1, 2, 3, 4, 5};
  const int kind = GENERATE(0, 1, 2);
  if (kind == 0) {
    source = Opaque(*from, &memory);
    CHECK(source->num_pieces(0, 0, 0) == 4);
  } else {  // some of them in memory
    source = *PinRecords(from, {.bytes = 3 * PlaceBytes(*from, 0, 0, 0),
                                .allocator = std::make_shared<test::PlainAllocator>()});
    CHECK(source->HostRecord(0, 1, 0) != nullptr);
    CHECK(source->HostRecord(0, 4, 0) == nullptr);
  }
  if (kind == 2) {
    ShardPlan plan;
    plan.experts = {{1, 2, 5}};
    plan.all_experts = false;
    source = *MakeShardSource(source, plan);
    numbers = plan.experts[0];
  }
  const int threads = GENERATE(1, 4);  // whole records, and pieces
  std::vector<int> experts(numbers.size());
  std::iota(experts.begin(), experts.end(), 0);
  const Reader read(*source, experts, threads);
  for (size_t i = 0; i < numbers.size(); ++i) {
    REQUIRE_OK(read.done[i]);
    CHECK(read.Same(i, from->record(0, numbers[i], 0)));
  }
}

/// Reads of pieces end when two of one record have been under way at once, or after a while.
class MetByTwo final : public SyntheticSource {
 public:
  MetByTwo() : SyntheticSource(Shape()) {}
  int64_t num_pieces(int, int, int) const override { return 3; }
  absl::Status ReadPiece(int, int expert, int, int64_t piece,
                         absl::Span<std::byte>) const override {
    if (absl::Status met = meeting_.Wait(); !met.ok()) return met;
    if (piece == 1) return absl::DataLossError(fmt::format("expert {} piece 1", expert));
    return absl::OkStatus();
  }

 private:
  test::Meeting meeting_;
};

TEST_CASE("two threads read one record, and the failure of a piece is the record's") {
  const Reader read(MetByTwo(), {2}, 2);
  CHECK(read.done[0] == absl::DataLossError("expert 2 piece 1"));
}

}  // namespace
}  // namespace moert
