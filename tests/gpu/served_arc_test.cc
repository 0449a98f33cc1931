// Captured calls whose misses the device serves by ARC's lists: the experts of the host's path, its
// bits, and no call of the driver that waits (driver_counter.cc is preloaded).
#include <algorithm>
#include <random>

#include "served_chain.h"
#include "tests/support/run_engine.h"

namespace moert::test {
namespace {

/// Nothing is prefetched and capacities stay, so that eager and captured steps see the same
/// experts.
const char* const kArc = "on-demand+fate.residency:eviction=arc,shallow=0,transient=0";

TEST_CASE("eager and captured steps in turn keep the experts that eager ones alone do") {
  for (const double fraction : {0.3, 0.65}) {
    INFO(fraction);
    Chain eager(kArc, fraction), turns(kArc, fraction), captured(kArc, fraction);
    REQUIRE(turns.engine()->graph_safe());
    // A call of no more experts than slots.
    const std::vector<int64_t> batches =
        fraction < 0.5 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{1, 2, 5};
    for (const int64_t rows : batches) {
      turns.Capture(rows);
      captured.Capture(rows);
    }
    std::mt19937 rng(2);
    int64_t wrong = 0;
    for (int s = 0; s < 160; ++s) {
      const int64_t rows = batches[rng() % batches.size()];
      HiddenProcess step(Shape().hidden, 100 + rng() % 40);
      const std::vector<float> x = step.Next(rows);
      const std::vector<float> expected = eager.Step(x, rows, false);
      wrong += !SameBits(turns.Step(x, rows, rng() % 3 != 0), expected);
      wrong += !SameBits(captured.Step(x, rows, true), expected);
    }
    CHECK(wrong == 0);
    const EngineStats expected = eager.Stats();
    CHECK(expected.evictions > 0);
    for (Chain* chain : {&turns, &captured}) {
      const EngineStats stats = chain->Stats();
      CHECK(stats.lookups == expected.lookups);
      CHECK(stats.hits_resident == expected.hits_resident);
      CHECK(stats.loads == expected.loads);
      CHECK(stats.evictions == expected.evictions);
      CHECK(stats.policy_fallbacks == 0);
    }
    for (int l = 0; l < Shape().layers; ++l) {
      const auto there = eager.engine()->ResidencyOf(l);
      REQUIRE_OK(there.status());
      CHECK(*turns.engine()->ResidencyOf(l) == *there);
      CHECK(*captured.engine()->ResidencyOf(l) == *there);
    }
  }
}

TEST_CASE(
    "with prefetches, at any budget and batch, the bits are those of an engine that holds all") {
  Chain all("resident", 1);
  for (const char* strategy : {kArc, "fate:eviction=arc", "fate:eviction=arc,shallow=1"}) {
    for (const double fraction : {0.1, 0.3, 0.75}) {
      INFO(strategy << " " << fraction);
      Chain served(strategy, fraction);
      REQUIRE(served.engine()->graph_safe());
      CHECK(WrongReplays(&all, &served) == 0);
      const EngineStats stats = served.Stats();
      CHECK(stats.lookups ==
            stats.hits_resident + stats.hits_prefetched + stats.late + stats.loads);
      CHECK(stats.policy_fallbacks == 0);
      CHECK(stats.peak_bytes <= stats.budget_bytes);
    }
  }
}

TEST_CASE("a few steps by ARC, for the tools that watch every access") {
  Chain all("resident", 1), served("fate:eviction=arc", 0.3);
  int64_t wrong = 0;
  const EngineStats stats = FewReplays(&served, &all, &wrong);
  CHECK(wrong == 0);
  CHECK(stats.evictions > 0);
}

TEST_CASE("budgets and leases between steps by ARC") {
  Chain all("resident", 1), served("fate:eviction=arc", 0.5);
  served.Capture(3);
  std::mt19937 rng(4);
  HiddenProcess process(Shape().hidden, 13);
  const auto next = [&] { return process.Next(3); };
  CHECK(WrongWhileBudgetsChange(&all, &served, &rng, next, [](int s) { return s % 5 != 2; }) == 0);
  CHECK(served.Stats().policy_fallbacks == 0);
}

TEST_CASE("no call waits by ARC, and a step is one graph launch") {
  Chain served("fate:eviction=arc", 0.25);
  HiddenProcess process(Shape().hidden, 3);
  served.Capture(4);
  served.Step(process.Next(4), 4, true);  // takes the blocks
  CheckOneLaunchAStep(&served, 4);
}

}  // namespace
}  // namespace moert::test
