// Readers on the wall clock: what a paced link promises of order and of time.
#include <memory>

#include "store/transfer_queue.h"
#include "support/catch.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

constexpr int64_t kTurnNs = 20'000'000;

struct Fixture {
  SyntheticSource source{SyntheticShape{}};
  WallClock clock;
  std::shared_ptr<LinkPacer> pacer = std::make_shared<LinkPacer>(&clock, 1e9);  // a byte a ns
  std::unique_ptr<TransferQueue> readers = MakeReaderQueue(&source, &clock, 2, pacer);
  std::vector<std::byte> memory = std::vector<std::byte>(1 << 20);
  std::vector<TransferDone> done;

  void Submit(int expert, LoadReason reason) {
    readers->Submit({{0, expert}, 0, 0, reason, absl::MakeSpan(memory), kTurnNs});
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

TEST_CASE("what others move over the link delays the next transfer") {
  Fixture f;
  CHECK(f.pacer->Reserve(kTurnNs) >= kTurnNs);
  f.Submit(1, LoadReason::kDemand);
  f.WaitForAll();
  CHECK(f.done[0].started_ns >= kTurnNs);
}

}  // namespace
}  // namespace moert
