// Misses shared with a CPU beside the fast tier, in simulation.
#include <random>

#include "moert/engine.h"
#include "moert/strategy.h"
#include "moert/trace.h"
#include "tests/support/catch.h"
#include "tests/support/synthetic_source.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

struct Run {
  EngineStats stats;
  int64_t now_ns = 0;
};

/// Decode steps of a routing that has scores, over three layers of 16 experts, four a token.
Run Simulate(const std::string& strategy, double share, bool cpu_executor, int64_t rows = 3,
             Phase phase = Phase::kDecode, int steps = 60, double link = 15e6) {
  const auto source =
      MakeSizesSource(MakeTraceHeader(SyntheticSource(SyntheticShape{3, 16, 4, 64, 48, 0}), 513));
  EngineOptions options;
  options.strategy = strategy;
  options.clock = ClockKind::kVirtual;
  options.simulate = true;
  options.budget = Budget::Fraction(share);
  options.max_tokens_per_forward = std::max<int64_t>(rows, options.max_tokens_per_forward);
  options.profile.cpu_executor = cpu_executor;
  // An expert of 18 KiB: 1.2 ms to load by default, 0.6 ms a token on the CPU.
  options.profile.link_bytes_per_s = link;
  options.profile.cpu_weight_bytes_per_s = 30e6;
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  std::mt19937 rng(3);
  std::vector<float> taste(16);
  for (float& v : taste) v = static_cast<float>(rng() % 1000) / 1000;
  for (int s = 0; s < steps; ++s) {
    auto step = (*engine)->BeginStep({phase, rows});
    REQUIRE_OK(step.status());
    for (int l = 0; l < 3; ++l) {
      std::vector<int32_t> ids;
      std::vector<float> weights, scores;
      for (int64_t t = 0; t < rows; ++t) {
        std::vector<float> row;
        float sum = 0;
        for (int e = 0; e < 16; ++e) {
          row.push_back(taste[e] + static_cast<float>(rng() % 1000) / 1000);
          sum += row.back();
        }
        for (float& v : row) v /= sum;
        std::vector<int32_t> order(16);
        for (int e = 0; e < 16; ++e) order[e] = e;
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
        for (int j = 0; j < 4; ++j) {
          ids.push_back(order[j]);
          weights.push_back(row[order[j]]);
        }
        scores.insert(scores.end(), row.begin(), row.end());
      }
      RoutedInput input;
      input.ids = ids;
      input.weights = weights;
      input.scores = scores;
      REQUIRE_OK((*engine)->ForwardRouted(*step, l, {}, input, {}));
    }
    REQUIRE_OK((*engine)->EndStep(*step));
  }
  return {(*engine)->stats(), (*engine)->now_ns()};
}

TEST_CASE("a balanced CPU takes misses, and steps get shorter") {
  const Run loads = Simulate("importance:alpha=0,balancer=0", 0.4, true);
  const Run balanced = Simulate("importance:alpha=0,balancer=1", 0.4, true);
  CHECK(loads.stats.cpu_computed == 0);
  CHECK(balanced.stats.cpu_computed > 0);
  CHECK(balanced.stats.lookups == loads.stats.lookups);
  CHECK(balanced.now_ns < loads.now_ns);
  CHECK(balanced.stats.balance_load_ns > 0);
  CHECK(balanced.stats.balance_cpu_ns > 0);
  CHECK(balanced.stats.policy_fallbacks == 0);
  // What the CPU computes is neither a hit nor a load.
  for (const char* strategy : {"importance:alpha=0,balancer=1", "importance:alpha=0,fill=0",
                               "hybrimoe-like:balancer=1", "hybrimoe-like"}) {
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
    const Run paper = run("importance:alpha=0,balancer=1", link);
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
    return Simulate("hybrimoe-like:control=0", 0.4, true, 1, Phase::kDecode, steps, 0.2e6);
  };
  const Run warm = run(2000), longer = run(3000);
  CHECK(warm.stats.fills + warm.stats.prefetch_issued == 19);
  CHECK(longer.stats.fills == warm.stats.fills);
  CHECK(longer.stats.evictions == 0);
  CHECK(longer.stats.hit_ratio() > 0.4);
}

TEST_CASE("without a CPU beside the fast tier the balancer is inactive") {
  const Run without = Simulate("importance:alpha=0", 0.4, false);
  const Run loads = Simulate("importance:alpha=0,balancer=0", 0.4, false);
  CHECK(without.stats.cpu_computed == 0);
  CHECK(without.now_ns == loads.now_ns);
}

TEST_CASE("in prefill the CPU gets only what it finishes in the shadow of the loads") {
  const Run loads = Simulate("importance:alpha=0,balancer=0", 0.4, true, 64, Phase::kPrefill, 8);
  const Run balanced = Simulate("importance:alpha=0,balancer=1", 0.4, true, 64, Phase::kPrefill, 8);
  CHECK(balanced.now_ns <= loads.now_ns);
  CHECK(balanced.stats.cpu_computed < balanced.stats.loads / 2);
  // With twice the tokens an expert there is less of it.
  const Run larger = Simulate("importance:alpha=0,balancer=1", 0.4, true, 200, Phase::kPrefill, 8);
  CHECK(larger.stats.cpu_computed < balanced.stats.cpu_computed);
  // And none in calls of very many, whatever the costs say.
  const auto free_cpu = [](int64_t rows) {
    return Simulate("importance:alpha=0", 0.4, true, rows, Phase::kPrefill, 2, 1e3)
        .stats.cpu_computed;
  };
  CHECK(free_cpu(512) > 0);
  CHECK(free_cpu(513) == 0);
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

TEST_CASE("strategies that move work to another executor are declared lossy") {
  CHECK(!MakeStrategy("cpu-split")->exact);
  CHECK(!MakeStrategy("hybrimoe-like")->exact);
  CHECK(!MakeStrategy("importance:alpha=0")->exact);
  CHECK(MakeStrategy("importance:alpha=0,balancer=0")->exact);
}

}  // namespace
}  // namespace moert
