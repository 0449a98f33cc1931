// The simulated link serves demand before prefetch before background, in logical time, one at a
// time or as many as the profile says.
#include <utility>

#include "support/catch.h"
#include "support/synthetic_source.h"
#include "transfer/transfer_queue.h"

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

TEST_CASE("a link too slow for the clock's type takes long, and ends") {
  Fixture f;
  f.profile.link_bytes_per_s = 1;
  f.Submit(1, LoadReason::kDemand, int64_t{1} << 40);
  REQUIRE(f.link->Wait(&f.done));
  CHECK(f.clock.now_ns() == 100 + 1'000'000'000'000'000);
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

TEST_CASE("streams share the link's rate, and none exceeds its own") {
  Fixture f;
  f.profile.link_streams = 2;
  f.profile.stream_bytes_per_s = 0.8e9;
  f.profile.link_latency_ns = 0;
  f.Submit(1, LoadReason::kDemand, 800);
  f.Submit(2, LoadReason::kDemand, 1000);
  f.Submit(3, LoadReason::kDemand, 400);
  // Two at 0.5 a ns until the first is done at 1600; then 200 are left of the second, and the third
  // begins: the second is done 400 later, the third then flows at its own rate.
  while (f.link->Wait(&f.done)) {
  }
  CHECK(f.Experts() == std::vector<int>{1, 2, 3});
  CHECK(f.done[0].finished_ns == 1600);
  CHECK(f.done[1].finished_ns == 2000);
  CHECK(f.done[2].started_ns == 1600);
  CHECK(f.done[2].finished_ns == 2000 + 250);
}

struct BelowRam : Fixture {
  explicit BelowRam(RamTier ram) {
    profile.link_latency_ns = 0;
    profile.file_bytes_per_s = 0.5e9;
    link = MakeVirtualLink(&source, &clock, &profile, std::move(ram));
  }
};

TEST_CASE("records that RAM lacks are read beside the link, some at once, and then cross it") {
  BelowRam f({.kept = {{0, 4}}, .readers = 2});
  for (int e = 1; e <= 3; ++e) f.Submit(e, LoadReason::kDemand, 1000);
  f.Submit(4, LoadReason::kDemand, 500);
  while (f.link->Wait(&f.done)) {
  }
  // The one in RAM first; two are read by 2000 and cross one after the other; the third is read by
  // 4000, when the link is free.
  CHECK(f.Experts() == std::vector<int>{4, 1, 2, 3});
  CHECK(f.done[0].finished_ns == 500);
  CHECK(f.done[1].finished_ns == 3000);
  CHECK(f.done[2].finished_ns == 4000);
  CHECK(f.done[2].started_ns == 0);
  CHECK(f.done[3].started_ns == 2000);
  CHECK(f.done[3].finished_ns == 5000);
}

TEST_CASE("what is read stays in RAM while there is room") {
  BelowRam f({.room = 1500});
  for (const int expert : {1, 2, 1, 2}) {
    f.Submit(expert, LoadReason::kDemand, 1000);
    REQUIRE(f.link->Wait(&f.done));
  }
  CHECK(f.done[0].finished_ns == 3000);
  CHECK(f.done[1].finished_ns == 6000);
  CHECK(f.done[2].finished_ns == 7000);
  CHECK(f.done[3].finished_ns == 10000);
}

TEST_CASE("a record that RAM lacks is forgotten before a reader has it, and not after") {
  BelowRam f({});
  for (int e = 1; e <= 3; ++e) f.Submit(e, LoadReason::kPrefetch, 1000);
  f.link->Raise({0, 3}, 0, LoadReason::kDemand);
  CHECK_FALSE(f.link->Cancel({0, 1}, 0));
  CHECK(f.link->Cancel({0, 2}, 0));
  while (f.link->Wait(&f.done)) {
  }
  CHECK(f.Experts() == std::vector<int>{1, 3});
}

TEST_CASE("one transfer alone takes a stream's time; whoever waits for it goes on a little later") {
  Fixture f;
  f.profile.link_streams = 4;
  f.profile.stream_bytes_per_s = 0.25e9;
  f.profile.arrival_ns = 70;
  f.Submit(1, LoadReason::kDemand, 1000);
  REQUIRE(f.link->Wait(&f.done));
  CHECK(f.done[0].finished_ns == 100 + 4000);
  CHECK(f.clock.now_ns() == 100 + 4000 + 70);
}

}  // namespace
}  // namespace moert
