// Misses shared with a CPU beside the fast tier, in simulation.
#include "moert/strategy.h"
#include "tests/support/catch.h"
#include "tests/support/simulated_steps.h"

namespace moert {
namespace {

using test::Simulate;
using Run = test::SimulatedRun;

TEST_CASE("a balanced CPU takes misses, and steps get shorter") {
  const Run loads = Simulate("importance:alpha=0,cpu=0", 0.4, true);
  const Run balanced = Simulate("importance:alpha=0,cpu=turns", 0.4, true);
  CHECK(loads.stats.cpu_computed == 0);
  CHECK(balanced.stats.cpu_computed > 0);
  CHECK(balanced.stats.lookups == loads.stats.lookups);
  CHECK(balanced.now_ns < loads.now_ns);
  CHECK(balanced.stats.balance_load_ns > 0);
  CHECK(balanced.stats.balance_cpu_ns > 0);
  CHECK(balanced.stats.policy_fallbacks == 0);
  // Experts that the CPU computes are neither hits nor loads.
  for (const char* strategy : {"importance:alpha=0,cpu=turns", "importance:alpha=0,fill=0"}) {
    const EngineStats s = Simulate(strategy, 0.4, true).stats;
    INFO(strategy);
    CHECK(s.cpu_computed > 0);
    CHECK(s.fills <= 19);  // slots: only what was free
    CHECK(s.hits_resident + s.hits_prefetched + s.late + s.loads - s.fills + s.cpu_computed ==
          s.lookups);
  }
}

TEST_CASE("done earliest beats Algorithm 2, and what the CPU computed is brought behind it") {
  const auto run = [](const char* strategy, double link) {
    return Simulate(strategy, 0.4, true, 1, Phase::kDecode, 300, link);
  };
  for (const double link : {2e6, 15e6}) {  // 9 ms a transfer: everything missing is the CPU's
    INFO("link of " << link);
    const Run paper = run("importance:alpha=0,cpu=turns", link);
    const Run left = run("importance:alpha=0,fill=0", link);
    const Run filled = run("importance:alpha=0", link);
    CHECK(left.now_ns < paper.now_ns);
    CHECK(filled.stats.fills > 0);
    CHECK(left.stats.fills <= 19);
    CHECK(static_cast<double>(filled.now_ns) < 1.02 * static_cast<double>(left.now_ns));
    if (link == 2e6) {
      CHECK(filled.now_ns < left.now_ns);
      CHECK(filled.stats.hit_ratio() > left.stats.hit_ratio());
    }
  }
}

TEST_CASE("a cold cache is filled behind the CPU even where every load would be late") {
  // 90 ms a transfer, 0.6 ms a token on the CPU: nothing is ever loaded on demand.
  const auto run = [](int steps) {
    return Simulate("importance:alpha=0,fill=0,control=0", 0.4, true, 1, Phase::kDecode, steps,
                    0.2e6);
  };
  const Run warm = run(2000), longer = run(3000);
  CHECK(warm.stats.fills + warm.stats.prefetch_issued == 19);
  CHECK(longer.stats.fills == warm.stats.fills);
  CHECK(longer.stats.evictions == 0);
  CHECK(longer.stats.hit_ratio() > 0.4);
}

TEST_CASE("without a CPU beside the fast tier nothing is shared") {
  const Run without = Simulate("importance:alpha=0", 0.4, false);
  const Run loads = Simulate("importance:alpha=0,cpu=0", 0.4, false);
  CHECK(without.stats.cpu_computed == 0);
  CHECK(without.now_ns == loads.now_ns);
}

TEST_CASE("in prefill the CPU gets only what it finishes in the shadow of the loads") {
  const Run loads = Simulate("importance:alpha=0,cpu=0", 0.4, true, 64, Phase::kPrefill, 8);
  const Run balanced = Simulate("importance:alpha=0,cpu=turns", 0.4, true, 64, Phase::kPrefill, 8);
  CHECK(balanced.now_ns <= loads.now_ns);
  CHECK(balanced.stats.cpu_computed < balanced.stats.loads / 2);
  // With twice the tokens an expert there is less of it.
  const Run larger = Simulate("importance:alpha=0,cpu=turns", 0.4, true, 200, Phase::kPrefill, 8);
  CHECK(larger.stats.cpu_computed < balanced.stats.cpu_computed);
  // And none in calls of very many, whatever the costs say.
  const auto free_cpu = [](int64_t rows) {
    return Simulate("importance:alpha=0", 0.4, true, rows, Phase::kPrefill, 2, 1e3)
        .stats.cpu_computed;
  };
  CHECK(free_cpu(512) > 0);
  CHECK(free_cpu(513) == 0);
}

TEST_CASE("strategies that move work to another executor are declared lossy") {
  CHECK(!MakeStrategy("importance:alpha=0")->exact());
  CHECK(MakeStrategy("importance:alpha=0,cpu=0")->exact());
}

}  // namespace
}  // namespace moert
