// Records are read once, into memory of the host's, and found there by whoever asks.
#include "moert/source/pinned_source.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "moert/source/opaque_source.h"
#include "source/shard_source.h"
#include "support/catch.h"
#include "support/opaque_fixture.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

/// Counts what is held, and has at most `limit`.
class CountingAllocator final : public HostAllocator {
 public:
  explicit CountingAllocator(int64_t limit) : limit_(limit) {}
  void* Allocate(int64_t bytes, int64_t alignment) override {
    if (held_ + bytes > limit_) return nullptr;
    held_ += bytes;
    return std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(bytes));
  }
  void Free(void* memory, int64_t bytes) override {
    held_ -= bytes;
    std::free(memory);
  }
  int64_t held() const { return held_; }

 private:
  const int64_t limit_;
  int64_t held_ = 0;
};

SyntheticShape Shape() {
  SyntheticShape shape;
  shape.low_version = true;
  return shape;
}

int64_t RecordBytes(const ExpertSource& source, int version) {
  return (source.layout(0, 0, version).bytes + kRecordAlignment - 1) / kRecordAlignment *
         kRecordAlignment;
}

TEST_CASE("all records lie in the allocator's memory, read once, and go with the source") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  const auto allocator = std::make_shared<CountingAllocator>(int64_t{1} << 30);
  PinOptions options;
  options.allocator = allocator;
  options.threads = 2;
  int64_t last = 0, total = 0;
  options.progress = [&](int64_t done, int64_t of) {
    CHECK(done > last);
    last = done;
    total = of;
    return true;
  };
  auto pinned = PinRecords(source, options);
  REQUIRE_OK(pinned.status());
  CHECK(last == total);
  CHECK(total == 3 * 8 * (RecordBytes(*source, 0) + RecordBytes(*source, 1)));
  CHECK(allocator->held() == total);
  CHECK(source->reads() == 2 * 3 * 8);
  for (int v = 0; v < 2; ++v) {
    for (int l = 0; l < 3; ++l) {
      for (int e = 0; e < 8; ++e) {
        const std::byte* record = (*pinned)->PinnedRecord(l, e, v);
        REQUIRE(record != nullptr);
        CHECK(reinterpret_cast<uintptr_t>(record) % kRecordAlignment == 0);
        const std::vector<std::byte>& expected = source->record(l, e, v);
        CHECK(std::memcmp(record, expected.data(), expected.size()) == 0);
      }
    }
  }
  // Shards of experts, and reads, go there too.
  ShardPlan plan;
  plan.experts = {{1, 5}, {0, 7}, {2, 3}};
  plan.all_experts = false;
  auto shard = MakeShardSource(*pinned, plan);
  REQUIRE_OK(shard.status());
  CHECK((*shard)->PinnedRecord(1, 1, 0) == (*pinned)->PinnedRecord(1, 7, 0));
  std::vector<std::byte> bytes(static_cast<size_t>(RecordBytes(*source, 0)) + kRecordAlignment);
  REQUIRE_OK((*pinned)->ReadRecord(2, 3, 0, absl::MakeSpan(bytes)));
  CHECK(std::memcmp(bytes.data(), source->record(2, 3, 0).data(), source->record(2, 3, 0).size()) ==
        0);
  CHECK(source->reads() == 2 * 3 * 8);
  shard->reset();
  pinned->reset();
  CHECK(allocator->held() == 0);
}

TEST_CASE("what does not fit is read from the source; what fails is said") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  const auto allocator = std::make_shared<CountingAllocator>(int64_t{1} << 30);
  PinOptions options;
  options.allocator = allocator;
  options.bytes = 10 * RecordBytes(*source, 0) + 100;  // a layer, and two of the next
  auto pinned = PinRecords(source, options);
  REQUIRE_OK(pinned.status());
  CHECK(allocator->held() == 10 * RecordBytes(*source, 0));
  CHECK((*pinned)->PinnedRecord(1, 1, 0) != nullptr);
  CHECK((*pinned)->PinnedRecord(1, 2, 0) == nullptr);
  CHECK((*pinned)->PinnedRecord(0, 0, 1) == nullptr);
  const int64_t reads = source->reads();
  std::vector<std::byte> bytes(static_cast<size_t>(RecordBytes(*source, 0)));
  REQUIRE_OK((*pinned)->ReadRecord(1, 2, 0, absl::MakeSpan(bytes)));
  CHECK(source->reads() == reads + 1);

  options.bytes = -2;
  CHECK(PinRecords(source, options).status().code() == absl::StatusCode::kInvalidArgument);
  options.bytes = -1;
  options.allocator = std::make_shared<CountingAllocator>(RecordBytes(*source, 0));
  const absl::Status full = PinRecords(source, options).status();
  CHECK(full.code() == absl::StatusCode::kResourceExhausted);
  CHECK(std::string(full.message()).find("layer 0") != std::string::npos);
  source->set_broken(true);
  options.allocator = allocator;
  pinned->reset();
  CHECK(PinRecords(source, options).status().code() == absl::StatusCode::kDataLoss);
  CHECK(allocator->held() == 0);
  CHECK(PinRecords(nullptr, options).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("a source over one with a product on the CPU has that product") {
  const test::OpaqueModel model;
  OpaqueWeights weights = model.InMemory();
  weights.product = [](const OpaqueProduct&) { return absl::OkStatus(); };
  auto made = MakeOpaqueSource("toy", model.spec, std::move(weights));
  REQUIRE_OK(made.status());
  const std::shared_ptr<const ExpertSource> source = *std::move(made);
  PinOptions options;
  options.bytes = 0;
  options.allocator = std::make_shared<CountingAllocator>(1 << 20);
  const auto pinned = PinRecords(source, options);
  REQUIRE_OK(pinned.status());
  CHECK((*pinned)->product() == source->product());
}

}  // namespace
}  // namespace moert
