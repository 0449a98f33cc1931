// The simulated link serves demand before prefetch before background, one at a time, in logical
// time.
#include "store/transfer_queue.h"
#include "support/catch.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

struct Fixture {
  SyntheticSource source{SyntheticShape{}};
  VirtualClock clock;
  HardwareProfile profile;
  std::unique_ptr<TransferQueue> link;
  std::vector<std::byte> memory = std::vector<std::byte>(1 << 20);
  std::vector<TransferDone> done;

  Fixture() {
    profile.link_bytes_per_s = 1e9;  // 1 byte a ns
    profile.link_latency_ns = 100;
    link = MakeVirtualLink(&source, &clock, &profile);
  }
  void Submit(int expert, LoadReason reason, int64_t bytes) {
    link->Submit({{0, expert}, 0, 0, reason, absl::MakeSpan(memory), bytes});
  }
  std::vector<int> Experts() const {
    std::vector<int> experts;
    for (const TransferDone& d : done) experts.push_back(d.key.expert);
    return experts;
  }
};

TEST_CASE("transfers take latency plus bytes over rate, one after another") {
  Fixture f;
  f.Submit(1, LoadReason::kDemand, 1000);
  f.Submit(2, LoadReason::kDemand, 500);
  f.link->Poll(&f.done);
  CHECK(f.done.empty());
  REQUIRE(f.link->Wait(&f.done));
  CHECK(f.clock.now_ns() == 1100);
  REQUIRE(f.link->Wait(&f.done));
  CHECK(f.clock.now_ns() == 1700);
  CHECK(f.Experts() == std::vector<int>{1, 2});
  CHECK(f.done[1].started_ns == 1100);
  CHECK(f.done[1].submitted_ns == 0);
  CHECK(!f.link->Wait(&f.done));
}

TEST_CASE("demand overtakes prefetch and background, but not what is on the link") {
  Fixture f;
  f.Submit(1, LoadReason::kBackground, 1000);  // on the link at once
  f.Submit(2, LoadReason::kBackground, 1000);
  f.Submit(3, LoadReason::kPrefetch, 1000);
  f.Submit(4, LoadReason::kDemand, 1000);
  f.link->Raise({0, 2}, 0, LoadReason::kDemand);
  while (f.link->Wait(&f.done)) {
  }
  CHECK(f.Experts() == std::vector<int>{1, 4, 2, 3});
}

TEST_CASE("only what waits can be cancelled") {
  Fixture f;
  f.Submit(1, LoadReason::kPrefetch, 1000);
  f.Submit(2, LoadReason::kPrefetch, 1000);
  CHECK(!f.link->Cancel({0, 1}, 0));
  CHECK(f.link->Cancel({0, 2}, 0));
  CHECK(!f.link->Cancel({0, 2}, 0));
  while (f.link->Wait(&f.done)) {
  }
  CHECK(f.Experts() == std::vector<int>{1});
  CHECK(f.source.reads() == 1);
}

TEST_CASE("time spent computing moves what is in flight") {
  Fixture f;
  f.Submit(1, LoadReason::kPrefetch, 1000);
  f.Submit(2, LoadReason::kPrefetch, 1000);
  f.clock.AdvanceTo(1500);
  f.link->Poll(&f.done);
  CHECK(f.Experts() == std::vector<int>{1});
  // A demand that comes while 2 is on the link waits for it and no longer.
  f.Submit(3, LoadReason::kDemand, 100);
  REQUIRE(f.link->Wait(&f.done));
  REQUIRE(f.link->Wait(&f.done));
  CHECK(f.Experts() == std::vector<int>{1, 2, 3});
  CHECK(f.clock.now_ns() == 2200 + 200);
}

}  // namespace
}  // namespace moert
