// dynaexq and graded:wait=0 end to end: nothing waits, quality follows the budget, budgets change
// live.
#include "absl/strings/match.h"
#include "moert/expert_store.h"
#include "support/catch.h"
#include "support/run_engine.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using test::HiddenProcess;
using test::RunStep;
using test::SyntheticShape;
using test::SyntheticSource;

std::shared_ptr<SyntheticSource> TwoVersions() {
  return std::make_shared<SyntheticSource>(
      SyntheticShape{3, 12, 2, 128, 96, 0, false, false, true});
}

EngineOptions Virtual(const char* strategy, double share) {
  EngineOptions options;
  options.strategy = strategy;
  options.clock = ClockKind::kVirtual;
  options.budget = Budget::Fraction(share);
  options.threads = 1;
  return options;
}

TEST_CASE("no step ever waits, and hot experts become high") {
  const auto source = TwoVersions();
  const std::string strategy =
      GENERATE("dynaexq:hi=bf16,lo=low,interval_ms=5,spare=2",
               // Forgets soon, and lets in what is worth a little more than nothing.
               "graded:wait=0,hi=bf16,lo=low,n=8,margin=0");
  auto engine = Engine::Create(source, Virtual(strategy.c_str(), 0.8));
  REQUIRE_OK(engine.status());
  // A skewed stream: the same few hidden states over and over.
  HiddenProcess process(128, 9);
  const std::vector<float> x = process.Next(1);
  std::vector<float> out;
  for (int s = 0; s < 60; ++s) {
    REQUIRE_OK(RunStep(engine->get(), Phase::kDecode, x, 1, &out));
    CHECK((*engine)->stats().peak_bytes <= (*engine)->stats().budget_bytes);
  }
  const EngineStats early = (*engine)->stats();
  CHECK(StalledNs(early) == 0);
  CHECK(early.lookups == early.hits_resident + early.low_answers);
  // One token a step: a lookup is a slot.
  CHECK(early.slots_low == early.low_answers);
  CHECK(early.mass_low > 0);
  CHECK(early.mass_low < early.mass);
  INFO(strategy << " promotions " << early.promotions << " low " << early.low_answers);
  CHECK(early.promotions > 0);
  for (int s = 0; s < 20; ++s) REQUIRE_OK(RunStep(engine->get(), Phase::kDecode, x, 1, &out));
  // Settled: everything the stream uses is answered as intended.
  CHECK((*engine)->stats().low_answers == early.low_answers);
}

TEST_CASE("as many blocks are spare as the link fills in a step, within the model's size") {
  const auto spare = [](int layers, int experts, double gbps, const std::string& keys = "") {
    EngineOptions options = Virtual(("dynaexq:hi=bf16,lo=low" + keys).c_str(), 1.0);
    options.link_gbps = gbps;
    const auto engine = Engine::Create(std::make_shared<SyntheticSource>(SyntheticShape{
                                           layers, experts, 2, 64, 32, 0, false, false, true}),
                                       options);
    REQUIRE_OK(engine.status());
    return (*engine)->memory().spare;
  };
  // A step of four layers takes 2 ms, and a block has 16 KiB: six of them at 0.05 GB/s.
  CHECK(spare(4, 128, 0.001) == 4);
  CHECK(spare(4, 128, 0.05) == 6);
  CHECK(spare(4, 128, 100) == 8);
  CHECK(spare(4, 16, 100) == 4);
  CHECK(spare(4, 128, 100, ",spare=5") == 5);
}

TEST_CASE("the settled output is the high version's own") {
  const auto source = TwoVersions();
  EngineOptions resident = Virtual("resident:scheme=bf16", 1.0);
  auto reference = Engine::Create(source, resident);
  REQUIRE_OK(reference.status());
  auto engine = Engine::Create(source, Virtual("graded:wait=0,hi=bf16,lo=low", 0.9));
  REQUIRE_OK(engine.status());
  HiddenProcess process(128, 9);
  const std::vector<float> x = process.Next(1);
  std::vector<float> expected, first, out;
  REQUIRE_OK(RunStep(reference->get(), Phase::kDecode, x, 1, &expected));
  REQUIRE_OK(RunStep(engine->get(), Phase::kDecode, x, 1, &first));
  CHECK(first != expected);
  CHECK((*engine)->stats().low_answers == 6);
  CHECK((*engine)->stats().slots_low == 6);
  CHECK((*engine)->stats().mass_low == Approx((*engine)->stats().mass));
  // A high version that feeds the next layer may change its routing: a few rounds settle it.
  for (int s = 0; s < 30; ++s) {
    out.clear();
    REQUIRE_OK(RunStep(engine->get(), Phase::kDecode, x, 1, &out));
  }
  CHECK(out == expected);
}

TEST_CASE("budgets change live, both ways, and hold") {
  const auto source = TwoVersions();
  const std::string strategy =
      GENERATE("dynaexq:hi=bf16,lo=low,interval_ms=5,spare=2", "graded:wait=0,hi=bf16,lo=low");
  auto engine = Engine::Create(source, Virtual(strategy.c_str(), 0.95));
  REQUIRE_OK(engine.status());
  HiddenProcess process(128, 11);
  std::vector<float> out;
  for (const double share : {0.95, 0.8, 0.75, 0.9, 0.78}) {
    INFO(strategy << " " << share);
    REQUIRE_OK((*engine)->SetBudget(Budget::Fraction(share)));
    EngineStats stats = (*engine)->stats();
    CHECK(stats.fixed_bytes + stats.pool_bytes <= stats.budget_bytes);
    for (int s = 0; s < 25; ++s) {
      REQUIRE_OK(RunStep(engine->get(), Phase::kDecode, process.Next(4), 4, &out));
      stats = (*engine)->stats();
      REQUIRE(stats.fixed_bytes + stats.pool_bytes <= stats.budget_bytes);
      REQUIRE(StalledNs(stats) == 0);
    }
  }
  CHECK((*engine)->stats().demotions > 0);
  CHECK((*engine)->SetBudget(Budget::Fraction(0.1)).code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("a budget that grew shrinks again, however far its promotions have come") {
  const auto source = TwoVersions();
  auto engine =
      Engine::Create(source, Virtual("dynaexq:hi=bf16,lo=low,interval_ms=1,spare=1", 0.9));
  REQUIRE_OK(engine.status());
  HiddenProcess process(128, 5);
  std::vector<float> out;
  for (int steps = 1; steps < 24; ++steps) {
    INFO(steps << " steps");
    REQUIRE_OK((*engine)->SetBudget(Budget::Fraction(0.65)));
    REQUIRE_OK((*engine)->SetBudget(Budget::Fraction(0.9)));
    for (int s = 0; s < steps; ++s) {
      REQUIRE_OK(RunStep(engine->get(), Phase::kDecode, process.Next(2), 2, &out));
    }
    for (const double share : {0.87, 0.84, 0.8, 0.75, 0.7}) {
      REQUIRE_OK((*engine)->SetBudget(Budget::Fraction(share)));
      const EngineStats stats = (*engine)->stats();
      REQUIRE(stats.fixed_bytes + stats.pool_bytes <= stats.budget_bytes);
    }
  }
  CHECK((*engine)->stats().promotions > 0);
}

TEST_CASE("budgets that cannot hold the promise are refused, unknown versions are named") {
  const auto source = TwoVersions();
  CHECK_THAT(
      std::string(
          Engine::Create(source, Virtual("graded:wait=0,hi=bf16,lo=low", 0.2)).status().message()),
      Catch::Contains("below the minimum") && Catch::Contains("low version"));
  CHECK_THAT(
      std::string(Engine::Create(source, Virtual("dynaexq:hi=bf16,lo=w9", 1.0)).status().message()),
      Catch::Contains("no version 'w9'") && Catch::Contains("bf16, low"));
  CHECK(!Engine::Create(source, Virtual("dynaexq:hi=bf16,lo=low,hi_fraction=0.9", 0.7)).ok());
}

TEST_CASE("a given high set is high from the start, until a decision changes it") {
  const auto source = TwoVersions();
  const auto highs = [](Engine* engine) {
    std::vector<std::vector<int>> sets;
    for (int l = 0; l < engine->model().num_layers(); ++l) {
      sets.emplace_back();
      const auto states = engine->ResidencyOf(l);
      REQUIRE_OK(states.status());
      for (int e = 0; e < 12; ++e) {
        if ((*states)[e] == Residency::kHigh) sets.back().push_back(e);
      }
    }
    return sets;
  };
  // Three of twelve; the second layer names two, the third none: the first ones fill up.
  const std::vector<std::vector<int>> given = {{2, 5, 11}, {0, 4, 7}, {0, 1, 2}};
  for (const char* strategy :
       {"dynaexq:hi=bf16,lo=low,hi_fraction=0.25,hot=11-2-5/7-4,interval_ms=10000000",
        "dynaexq:hi=bf16,lo=low,hi_fraction=0.25,hot=11-2-5/7-4/"}) {
    INFO(strategy);
    auto engine = Engine::Create(source, Virtual(strategy, 1.0));
    REQUIRE_OK(engine.status());
    CHECK(highs(engine->get()) == given);
    HiddenProcess process(128, 9);
    std::vector<float> out;
    for (int s = 0; s < 300; ++s) {
      REQUIRE_OK(RunStep(engine->get(), Phase::kDecode, process.Next(2), 2, &out));
    }
    CHECK(StalledNs((*engine)->stats()) == 0);
    const bool undecided = absl::StrContains(strategy, "interval_ms");
    CHECK((highs(engine->get()) == given) == undecided);
    CHECK(((*engine)->stats().promotions == 0) == undecided);
  }
  const auto refused = [&](const char* hot) {
    const std::string strategy = std::string("dynaexq:hi=bf16,lo=low,hi_fraction=0.25,hot=") + hot;
    return std::string(Engine::Create(source, Virtual(strategy.c_str(), 1.0)).status().message());
  };
  CHECK_THAT(refused("0-1-2-3"), Catch::Contains("more experts of layer 0 than the 3"));
  CHECK_THAT(refused("1-1"), Catch::Contains("named twice"));
  CHECK_THAT(refused("0/12"), Catch::Contains("layer 1 expert 12 does not exist"));
  CHECK_THAT(refused("0///1"), Catch::Contains("layer 3 expert 1 does not exist"));
  CHECK_THAT(refused("0-x"), Catch::Contains("'x' of layer 0 is no expert"));
}

TEST_CASE("graded:wait=0 exchanges high versions for better ones only") {
  const auto source = TwoVersions();
  int64_t promotions[2], low[2];
  for (int i = 0; i < 2; ++i) {
    // A cache of a few high versions under a stream that uses all experts in turn.
    auto engine =
        Engine::Create(source, Virtual(i == 0 ? "graded:wait=0,hi=bf16,lo=low"
                                              : "graded:wait=0,hi=bf16,lo=low+fate.residency",
                                       0.7));
    REQUIRE_OK(engine.status());
    HiddenProcess process(128, 21);
    std::vector<float> out;
    for (int s = 0; s < 400; ++s) {
      REQUIRE_OK(RunStep(engine->get(), Phase::kDecode, process.Next(1), 1, &out));
    }
    const EngineStats stats = (*engine)->stats();
    CHECK(StalledNs(stats) == 0);
    promotions[i] = stats.promotions;
    low[i] = stats.low_answers;
  }
  CHECK(promotions[0] > 0);
  CHECK(promotions[0] * 4 < promotions[1]);
  CHECK(low[0] < low[1] * 1.1);
}

TEST_CASE("hysteresis: a noisy stream moves fewer experts with a margin than without") {
  const auto source = TwoVersions();
  int64_t transitions[2];
  for (int i = 0; i < 2; ++i) {
    auto engine = Engine::Create(
        source,
        Virtual(i == 0 ? "dynaexq:hi=bf16,lo=low,interval_ms=3,spare=2,margin=0,noise=0,beta=0"
                       : "dynaexq:hi=bf16,lo=low,interval_ms=3,spare=2,margin=1,noise=0,beta=0.9",
                0.85));
    REQUIRE_OK(engine.status());
    HiddenProcess process(128, 13);
    std::vector<float> out;
    for (int s = 0; s < 200; ++s) {
      REQUIRE_OK(RunStep(engine->get(), Phase::kDecode, process.Next(4), 4, &out));
    }
    transitions[i] = (*engine)->stats().promotions + (*engine)->stats().demotions;
  }
  CHECK(transitions[0] > 50);
  CHECK(transitions[1] * 3 < transitions[0]);
}

}  // namespace
}  // namespace moert
