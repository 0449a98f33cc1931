// The strategies to compare with: registered as a host's are, and doing what they are called after.
#include <string>

#include "absl/strings/match.h"
#include "moert/engine.h"
#include "moert/expert_store.h"
#include "moert/strategy.h"
#include "research/strategies/research_strategies.h"
#include "support/catch.h"
#include "support/run_engine.h"
#include "support/simulated_steps.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using Run = test::SimulatedRun;

Run Simulate(const std::string& strategy, double share, bool cpu_executor, int64_t rows = 3,
             Phase phase = Phase::kDecode, int steps = 60, double link = 15e6) {
  REQUIRE_OK(RegisterResearchStrategies());
  return test::Simulate(strategy, share, cpu_executor, rows, phase, steps, link);
}

TEST_CASE("they are unknown until they are registered, and registering again is no error") {
  const auto listed = [] {
    int count = 0;
    for (const StrategyInfo& info : ListStrategies()) {
      count += info.name == "cpu-split" || info.name == "static-mixed" ||
               info.name == "activation-path" || info.name == "load-on-demand" ||
               absl::EndsWith(info.name, "-like");
    }
    return count;
  };
  CHECK(listed() == 0);
  CHECK(!MakeStrategy("cpu-split").ok());
  REQUIRE_OK(RegisterResearchStrategies());
  REQUIRE_OK(RegisterResearchStrategies());
  CHECK(listed() == 8);
}

TEST_CASE("what a paper's baseline answers does not depend on what it keeps or brings") {
  REQUIRE_OK(RegisterResearchStrategies());
  const auto source =
      std::make_shared<test::SyntheticSource>(test::SyntheticShape{4, 12, 3, 96, 48, 40});
  EngineOptions options;
  options.clock = ClockKind::kVirtual;
  std::vector<float> expected;
  for (const char* strategy : {"resident", "load-on-demand", "activation-path:width=300",
                               "activation-path+fate.residency"}) {
    INFO(strategy);
    options.strategy = strategy;
    auto engine = Engine::Create(source, options);
    REQUIRE_OK(engine.status());
    test::HiddenProcess process(96, 7);
    std::vector<float> outputs, out;
    for (int s = 0; s < 20; ++s) {
      REQUIRE_OK(test::RunStep(engine->get(), Phase::kDecode, process.Next(2), 2, &out));
      outputs.insert(outputs.end(), out.begin(), out.end());
    }
    if (expected.empty()) expected = outputs;
    CHECK(outputs == expected);
    const EngineStats stats = (*engine)->stats();
    if (options.strategy == "load-on-demand") CHECK(stats.hits_resident == 0);
    if (options.strategy != "resident") CHECK(stats.loads > 0);
    if (options.strategy.rfind("activation-path", 0) == 0) CHECK(stats.prefetch_issued > 0);
    options.budget = Budget::Fraction(0.4);
  }
}

TEST_CASE("cpu-split moves nothing once its layers are held") {
  // 48 experts, room for 19: the last layer whole, three experts of the one before.
  const Run warm = Simulate("cpu-split", 0.4, true, 3, Phase::kDecode, 200);
  const Run longer = Simulate("cpu-split", 0.4, true, 3, Phase::kDecode, 400);
  CHECK(warm.stats.loads > 12);
  CHECK(warm.stats.loads <= 19);
  CHECK(longer.stats.loads == warm.stats.loads);
  CHECK(longer.stats.evictions == 0);
  CHECK(longer.stats.cpu_computed > warm.stats.cpu_computed);
  // Prompts are the fast tier's.
  CHECK(Simulate("cpu-split", 0.4, true, 64, Phase::kPrefill, 8).stats.cpu_computed == 0);
  // On a machine without that CPU everything is loaded.
  const Run none = Simulate("cpu-split", 0.4, false);
  CHECK(none.stats.cpu_computed == 0);
  CHECK(none.stats.loads > 19);
}

TEST_CASE("hybrimoe-like caches by score and shares misses") {
  const Run run = Simulate("hybrimoe-like", 0.4, true);
  CHECK(run.stats.cpu_computed > 0);
  CHECK(run.stats.loads > 0);
  CHECK(run.stats.slots_substituted == 0);
  CHECK(run.now_ns < Simulate("cpu-split", 0.4, true).now_ns);
}

TEST_CASE("misses shared with the CPU are neither hits nor loads") {
  for (const char* strategy : {"hybrimoe-like:cpu=turns", "hybrimoe-like"}) {
    const EngineStats s = Simulate(strategy, 0.4, true).stats;
    INFO(strategy);
    CHECK(s.cpu_computed > 0);
    CHECK(s.fills <= 19);  // slots: only what was free
    CHECK(s.hits_resident + s.hits_prefetched + s.late + s.loads - s.fills + s.cpu_computed ==
          s.lookups);
  }
}

TEST_CASE("a cold cache is filled behind the CPU even where every load would be late") {
  // 90 ms a transfer, 0.6 ms a token on the CPU: nothing is ever loaded on demand.
  const auto run = [](int steps) {
    return Simulate("hybrimoe-like:control=0", 0.4, true, 1, Phase::kDecode, steps, 0.2e6);
  };
  const Run warm = run(2000), longer = run(3000);
  CHECK(warm.stats.fills + warm.stats.prefetch_issued == 19);
  CHECK(longer.stats.fills == warm.stats.fills);
  CHECK(longer.stats.evictions == 0);
  CHECK(longer.stats.hit_ratio() > 0.4);
}

TEST_CASE("what they promise follows from their parts") {
  REQUIRE_OK(RegisterResearchStrategies());
  CHECK(!MakeStrategy("cpu-split")->exact());
  CHECK(!MakeStrategy("hybrimoe-like")->exact());
  CHECK(MakeStrategy("expertflow-like")->exact());
  CHECK(!MakeStrategy("static-mixed")->exact());
  CHECK(MakeStrategy("static-mixed")->graph_safe());
  CHECK_THAT(std::string(MakeStrategy("static-mixed+hybrimoe-like.prefetch").status().message()),
             Catch::Contains("no effect"));
}

TEST_CASE("static-mixed keeps the set it is given") {
  REQUIRE_OK(RegisterResearchStrategies());
  const auto source = std::make_shared<test::SyntheticSource>(
      test::SyntheticShape{3, 12, 2, 128, 96, 0, false, false, true});
  EngineOptions options;
  options.strategy = "static-mixed:hi=bf16,lo=low,hi_fraction=0.25,hot=11-2-5/7-4";
  options.clock = ClockKind::kVirtual;
  options.threads = 1;
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  test::HiddenProcess process(128, 9);
  std::vector<float> out;
  for (int s = 0; s < 300; ++s) {
    REQUIRE_OK(test::RunStep(engine->get(), Phase::kDecode, process.Next(2), 2, &out));
  }
  // Three of twelve; the second layer names two, the third none: the first ones fill up.
  const std::vector<std::vector<int>> given = {{2, 5, 11}, {0, 4, 7}, {0, 1, 2}};
  for (int l = 0; l < 3; ++l) {
    const auto states = (*engine)->ResidencyOf(l);
    REQUIRE_OK(states.status());
    std::vector<int> high;
    for (int e = 0; e < 12; ++e) {
      if ((*states)[e] == Residency::kHigh) high.push_back(e);
    }
    CHECK(high == given[l]);
  }
  CHECK((*engine)->stats().promotions == 0);
}

}  // namespace
}  // namespace moert
