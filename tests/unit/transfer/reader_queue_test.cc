// Readers on the wall clock: what a paced link promises of order and of time.
#include <atomic>
#include <chrono>
#include <memory>

#include "support/catch.h"
#include "support/meeting.h"
#include "support/synthetic_source.h"
#include "transfer/transfer_queue.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

constexpr int64_t kTurnNs = 20'000'000;

struct Fixture {
  SyntheticSource source{SyntheticShape{}};
  WallClock clock;
  std::shared_ptr<LinkPacer> pacer = std::make_shared<LinkPacer>(&clock, 1e9);  // a byte a ns
  std::unique_ptr<TransferQueue> readers = *MakeReaderQueue(&source, &clock, 2, pacer);
  std::vector<std::byte> memory = std::vector<std::byte>(1 << 20);
  std::vector<TransferDone> done;

  void Submit(int expert, LoadReason reason) {
    constexpr size_t kEach = 1 << 17;  // two may be read at once
    readers->Submit({{0, expert},
                     0,
                     0,
                     reason,
                     absl::MakeSpan(memory).subspan(expert * kEach, kEach),
                     kTurnNs});
  }
  void WaitForAll() {
    while (readers->Wait(&done)) {
    }
  }
};

TEST_CASE("a paced link carries one transfer after another, whoever reads") {
  Fixture f;
  for (int e = 0; e < 4; ++e) f.Submit(e, LoadReason::kPrefetch);
  f.WaitForAll();
  REQUIRE(f.done.size() == 4);
  for (int i = 0; i < 4; ++i) {
    REQUIRE_OK(f.done[i].status);
    CHECK(f.done[i].key.expert == i);
    CHECK(f.done[i].finished_ns - f.done[i].started_ns >= kTurnNs);
    if (i > 0) CHECK(f.done[i].finished_ns - f.done[i - 1].finished_ns >= kTurnNs / 2);
  }
  CHECK(f.done[3].finished_ns - f.done[0].started_ns >= 4 * kTurnNs);
}

TEST_CASE("a demand load goes ahead of prefetches whose turn on a paced link has not begun") {
  Fixture f;
  f.Submit(1, LoadReason::kPrefetch);
  // Taken by a reader by now, or taken before anything else: it came first.
  while (f.pacer->free_ns() == 0) {
  }
  f.Submit(2, LoadReason::kPrefetch);  // the other reader is idle, the link is not
  f.Submit(3, LoadReason::kPrefetch);
  f.Submit(4, LoadReason::kDemand);
  CHECK(f.readers->Cancel({0, 3}, 0));
  f.WaitForAll();
  REQUIRE(f.done.size() == 3);
  CHECK(f.done[0].key.expert == 1);
  CHECK(f.done[1].key.expert == 4);
  CHECK(f.done[2].key.expert == 2);
}

/// Steps back by an hour at its n-th reading, and stays there.
class SteppingClock final : public Clock {
 public:
  explicit SteppingClock(int n) : left_(n) {}
  int64_t now_ns() const override {
    return clock_.now_ns() - (left_.fetch_sub(1) <= 0 ? int64_t{3600} * 1'000'000'000 : 0);
  }

 private:
  WallClock clock_;
  mutable std::atomic<int> left_;
};

TEST_CASE("a clock that steps back does not stop the readers") {
  const SyntheticSource source{SyntheticShape{}};
  std::vector<std::byte> memory(1 << 20);
  for (int n = 0; n < 12; ++n) {
    const SteppingClock clock(n);
    const auto begin = std::chrono::steady_clock::now();
    for (const bool paced : {false, true}) {
      const auto pacer = paced ? std::make_shared<LinkPacer>(&clock, 1e9) : nullptr;
      const std::unique_ptr<TransferQueue> readers = *MakeReaderQueue(&source, &clock, 1, pacer);
      readers->Submit({{0, 0}, 0, 0, LoadReason::kDemand, absl::MakeSpan(memory), 1000});
      std::vector<TransferDone> done;
      while (readers->Wait(&done)) {
      }
      REQUIRE(done.size() == 1);
    }
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
  }
}

/// Its reads end when two of them have been under way at once, or after a while.
class MetByTwo final : public SyntheticSource {
 public:
  MetByTwo() : SyntheticSource(SyntheticShape{}) {}
  absl::Status ReadRecord(int, int, int, absl::Span<std::byte>) const override {
    return meeting_.Wait();
  }

 private:
  test::Meeting meeting_;
};

TEST_CASE("one wake-up is enough for readers to share what comes several at a time") {
  const LoadReason reason = GENERATE(LoadReason::kDemand, LoadReason::kBackground);
  const MetByTwo source;
  WallClock clock;
  std::unique_ptr<TransferQueue> readers = *MakeReaderQueue(&source, &clock, 2, nullptr);
  std::vector<std::byte> memory(1 << 10);
  std::vector<TransferDone> done;
  for (int e = 0; e < 4; ++e) {
    readers->Submit({{0, e}, 0, 0, reason, absl::MakeSpan(memory), 1});
  }
  while (readers->Wait(&done)) {
  }
  REQUIRE(done.size() == 4);
  for (const TransferDone& d : done) CHECK(d.status.ok());
}

TEST_CASE("what others move over the link delays the next transfer") {
  Fixture f;
  CHECK(f.pacer->Reserve(kTurnNs) >= kTurnNs);
  f.Submit(1, LoadReason::kDemand);
  f.WaitForAll();
  CHECK(f.done[0].started_ns >= kTurnNs);
}

}  // namespace
}  // namespace moert
