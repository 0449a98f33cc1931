// fate end to end: bit-identical to resident whatever the budget does, and demand loads that no
// prefetch keeps waiting.
#include <algorithm>
#include <cstring>
#include <random>

#include "fmt/format.h"
#include "moert/tools/trace.h"
#include "tests/support/catch.h"
#include "tests/support/run_engine.h"
#include "tests/support/synthetic_source.h"

namespace moert {
namespace {

using test::HiddenProcess;
using test::RunStep;
using test::SyntheticShape;
using test::SyntheticSource;

TEST_CASE("exact over random shapes, keys and budgets that change while it runs") {
  std::mt19937 rng(20240611);
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(rng);
  };
  int64_t prefetched = 0, evicted = 0;
  for (int trial = 0; trial < 40; ++trial) {
    const int layers = draw(1, 5), experts = draw(4, 16);
    const auto source = std::make_shared<SyntheticSource>(
        SyntheticShape{layers, experts, draw(1, 4), 48, 32, draw(0, 1) * 24}, trial + 1);
    EngineOptions options;
    options.strategy = "resident";
    options.threads = 1;
    options.clock = draw(0, 1) ? ClockKind::kVirtual : ClockKind::kWall;
    options.link_gbps = options.clock == ClockKind::kWall ? 0 : 0.001 * draw(1, 400);
    options.max_tokens_per_forward = 32;
    auto reference = Engine::Create(source, options);
    REQUIRE_OK(reference.status());
    options.strategy =
        fmt::format("fate:percentile={},wrap={},control={}", draw(0, 99), draw(0, 1), draw(0, 1));
    if (draw(0, 1)) options.strategy += fmt::format(",shallow={}", draw(0, layers));
    if (draw(0, 1)) options.strategy += fmt::format(",transient={}", draw(0, 6));
    const auto plan = Engine::Plan(*source, options);
    REQUIRE_OK(plan.status());
    const auto any_budget = [&] {
      return draw(0, 3) == 0 ? Budget::Bytes(plan->minimum_bytes)
                             : Budget::Fraction(0.01 * draw(100 / layers / experts + 1, 100));
    };
    options.budget = any_budget();
    auto engine = Engine::Create(source, options);
    REQUIRE_OK(engine.status());
    INFO("trial " << trial << ": " << options.strategy);
    HiddenProcess a(48, trial), b(48, trial);
    std::vector<float> expected, answers;
    for (int s = 0; s < 12; ++s) {
      if (s > 0 && draw(0, 3) == 0) REQUIRE_OK((*engine)->SetBudget(any_budget()));
      const Phase phase = draw(0, 2) == 0 ? Phase::kPrefill : Phase::kDecode;
      const int rows = draw(1, phase == Phase::kPrefill ? 32 : 4);
      REQUIRE_OK(RunStep(reference->get(), phase, a.Next(rows), rows, &expected));
      REQUIRE_OK(RunStep(engine->get(), phase, b.Next(rows), rows, &answers));
      const EngineStats stats = (*engine)->stats();
      REQUIRE(stats.pool_bytes + stats.fixed_bytes <= stats.budget_bytes);
    }
    REQUIRE(answers.size() == expected.size());
    CHECK(std::memcmp(answers.data(), expected.data(), answers.size() * sizeof(float)) == 0);
    prefetched += (*engine)->stats().prefetch_issued;
    evicted += (*engine)->stats().evictions;
  }
  CHECK(prefetched > 100);
  CHECK(evicted > 100);
}

/// How long the last layer call waited.
struct LastCall final : TraceSink {
  int64_t stalled_ns = 0;
  int distinct = 0;
  int prefetches = 0;
  void OnCall(const TraceCall& call) override {
    stalled_ns = call.times.stalled_ns;
    std::vector<int32_t> ids(call.ids.begin(), call.ids.end());
    std::sort(ids.begin(), ids.end());
    distinct = static_cast<int>(std::unique(ids.begin(), ids.end()) - ids.begin());
  }
  void OnSpan(const TimelineSpan& span) override { prefetches += span.name == "prefetch"; }
};

// A link on which one transfer takes longer than a layer, and prefetches that are mostly wrong
// (every expert of the next layer is named): the worst that prefetching can do to a demand load is
// the rest of one transfer that had begun.
TEST_CASE("no demand load waits behind more than the transfer that is on the link") {
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{4, 12, 3, 96, 48, 0});
  const auto sink = std::make_shared<LastCall>();
  EngineOptions options;
  options.strategy = GENERATE("fate:percentile=0,control=0", "fate:percentile=0,control=0,wrap=1",
                              "on-demand+fate.prefetch:percentile=0,control=0");
  options.clock = ClockKind::kVirtual;
  options.threads = 1;
  options.budget = Budget::Fraction(0.4);
  options.trace = sink;
  options.profile.link_latency_ns = 0;
  const double transfers_in_window = GENERATE(0.7, 1.5, 6.0);
  const int64_t transfer_ns = static_cast<int64_t>(
      static_cast<double>(options.profile.decode_layer_ns) / transfers_in_window);
  const int64_t bytes = source->layout(0, 0, 0).bytes;
  options.profile.link_bytes_per_s = 1e9 * static_cast<double>(bytes) / transfer_ns;
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  INFO(options.strategy << " window holds " << transfers_in_window);
  HiddenProcess process(96, 5);
  std::vector<float> x(96), y(96);
  int64_t worst = 0, stalled = 0;
  for (int s = 0; s < 80; ++s) {
    x = process.Next(1);
    auto step = (*engine)->BeginStep({Phase::kDecode, 1});
    REQUIRE_OK(step.status());
    for (int l = 0; l < 4; ++l) {
      const EngineStats before = (*engine)->stats();
      REQUIRE_OK((*engine)->Forward(*step, l, {x.data(), DType::kF32, 1, 96, 96},
                                    {y.data(), DType::kF32, 1, 96, 96}));
      const EngineStats call = StatsSince((*engine)->stats(), before);
      const int64_t missed = call.lookups - call.hits_resident - call.hits_prefetched;
      // Late prefetches are misses too: raised, they are demand loads.
      CHECK(sink->stalled_ns <= (missed + 1) * (transfer_ns + 1));
      if (missed == 0) CHECK(sink->stalled_ns == 0);
      worst = std::max(worst, sink->stalled_ns - missed * transfer_ns);
      stalled += sink->stalled_ns;
      for (size_t i = 0; i < x.size(); ++i) x[i] = 0.8f * x[i] + y[i];
    }
    REQUIRE_OK((*engine)->EndStep(*step));
  }
  CHECK(stalled > 0);
  if (transfers_in_window > 1) CHECK(sink->prefetches > 0);
}

// A host pauses between two steps: it samples, or waits for its user. That is no time that a
// prefetch could use, so no slot may be kept free for it.
TEST_CASE("a pause between steps costs no hits") {
  constexpr int kLayers = 6, kExperts = 24, kTopK = 3;
  const auto source =
      std::make_shared<SyntheticSource>(SyntheticShape{kLayers, kExperts, kTopK, 16, 16, 0});
  EngineOptions options;
  options.clock = ClockKind::kVirtual;
  options.simulate = true;
  options.budget = Budget::Fraction(0.25);
  options.strategy = GENERATE("fate", "on-demand+importance.prefetch+fate.residency");
  options.profile.link_latency_ns = 0;
  const double transfers_in_window = GENERATE(0.3, 1.3);
  options.profile.link_bytes_per_s = 1e9 * static_cast<double>(source->layout(0, 0, 0).bytes) *
                                     transfers_in_window /
                                     static_cast<double>(options.profile.decode_layer_ns);
  INFO(options.strategy << " window holds " << transfers_in_window);
  const auto misses = [&](int64_t pause_ns) {
    auto engine = Engine::Create(source, options);
    REQUIRE_OK(engine.status());
    std::mt19937_64 rng(3);
    std::vector<std::vector<int32_t>> used(kLayers);
    std::vector<float> x(16), y(16), weights(kTopK, 1.0f / kTopK), scores(kExperts);
    for (int s = 0; s < 300; ++s) {
      for (std::vector<int32_t>& ids : used) {  // mostly those of the step before
        for (int i = 0; static_cast<int>(ids.size()) < kTopK || i == 0; ++i) {
          const int32_t e = static_cast<int32_t>(std::min(rng() % kExperts, rng() % kExperts));
          if (std::find(ids.begin(), ids.end(), e) != ids.end()) continue;
          if (static_cast<int>(ids.size()) == kTopK) ids.erase(ids.begin());
          ids.push_back(e);
        }
      }
      auto step = (*engine)->BeginStep({Phase::kDecode, 1});
      REQUIRE_OK(step.status());
      for (int l = 0; l < kLayers; ++l) {
        RoutedInput routed;
        routed.ids = used[l];
        routed.weights = weights;
        scores.assign(kExperts, 0.1f);
        for (const int32_t e : used[(l + 1) % kLayers]) scores[e] = 0.9f;
        if (l + 1 < kLayers) routed.next_scores = scores;
        if (l == 0) routed.idle_before_ns = pause_ns;
        REQUIRE_OK((*engine)->ForwardRouted(*step, l, {x.data(), DType::kF32, 1, 16, 16}, routed,
                                            {y.data(), DType::kF32, 1, 16, 16}));
      }
      REQUIRE_OK((*engine)->EndStep(*step));
    }
    const EngineStats stats = (*engine)->stats();
    return stats.lookups - stats.hits_resident - stats.hits_prefetched;
  };
  const int64_t none = misses(0);
  CHECK(none > 0);
  CHECK(misses(100 * options.profile.decode_layer_ns) <= none + none / 100);
}

}  // namespace
}  // namespace moert
