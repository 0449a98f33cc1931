// The fast tier fills by itself after opening: the most popular experts first, free places only,
// never ahead of what a step needs.
#include "moert/tools/warm_start.h"

#include <chrono>
#include <random>
#include <thread>

#include "moert/expert_store.h"
#include "moert/tools/trace.h"
#include "tests/support/catch.h"
#include "tests/support/run_engine.h"
#include "tests/support/synthetic_source.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

// Expert e of layer l is the (e * 5 + l) % 8-th most used.
std::vector<std::vector<int64_t>> Counts() {
  std::vector<std::vector<int64_t>> counts(3, std::vector<int64_t>(8));
  for (int l = 0; l < 3; ++l) {
    for (int e = 0; e < 8; ++e) counts[l][e] = 8 - (e * 5 + l) % 8;
  }
  return counts;
}

// Counts what calls use.
class Uses final : public TraceSink {
 public:
  void OnCall(const TraceCall& call) override {
    for (const int32_t e : call.ids) ++counts[call.layer][e];
  }
  void OnSpan(const TimelineSpan&) override {}
  bool wants_next_scores() const override { return false; }
  std::vector<std::vector<int64_t>> counts =
      std::vector<std::vector<int64_t>>(3, std::vector<int64_t>(8));
};

constexpr double kLink = 60e6;  // bytes a second on the virtual clock: an expert in 0.3 ms

std::unique_ptr<Engine> Open(double share, ClockKind clock,
                             std::shared_ptr<TraceSink> trace = nullptr) {
  EngineOptions options;
  options.trace = std::move(trace);
  options.budget = Budget::Fraction(share);
  options.threads = 1;
  options.clock = clock;
  if (clock == ClockKind::kVirtual) options.profile.link_bytes_per_s = kLink;
  auto engine = Engine::Create(std::make_shared<SyntheticSource>(SyntheticShape{}), options);
  REQUIRE(engine.ok());
  return *std::move(engine);
}

TEST_CASE("order: by share of the layer's use; experts never used are left out") {
  const std::vector<ExpertKey> order = WarmStart::ByCounts({{1, 0, 3}, {100, 300, 0}});
  REQUIRE(order.size() == 4);
  CHECK((order[0].layer == 0 && order[0].expert == 2));
  CHECK((order[1].layer == 1 && order[1].expert == 1));
  CHECK((order[2].layer == 0 && order[2].expert == 0));
  CHECK((order[3].layer == 1 && order[3].expert == 0));
}

TEST_CASE("the most popular half is there after a while, and nothing was evicted or demanded") {
  const auto engine = Open(0.5, ClockKind::kWall);
  auto warm = WarmStart::Create(engine.get(), WarmStart::ByCounts(Counts()));
  REQUIRE(warm.ok());
  for (int i = 0; i < 5000 && (*warm)->stats().filling; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const WarmStartStats stats = (*warm)->stats();
  CHECK_FALSE(stats.filling);
  CHECK(stats.asked == 12);
  CHECK(stats.arrived == 12);
  for (int l = 0; l < 3; ++l) {
    const auto states = engine->ResidencyOf(l);
    REQUIRE(states.ok());
    for (int e = 0; e < 8; ++e) {
      INFO("layer " << l << ", expert " << e);
      CHECK(((*states)[e] != Residency::kAbsent) == (Counts()[l][e] > 4));
    }
  }
  CHECK(engine->stats().evictions == 0);
  CHECK(engine->stats().loads == 0);
}

struct Outcome {
  int64_t ns = 0;
  EngineStats stats;
};

// Steps on the virtual clock, with rounds of filling between them if there are counts to fill by.
Outcome Run(const std::vector<std::vector<int64_t>>& counts, std::shared_ptr<TraceSink> uses) {
  const auto engine = Open(0.5, ClockKind::kVirtual, std::move(uses));
  WarmStartOptions options;
  options.thread = false;
  auto warm = WarmStart::Create(engine.get(), WarmStart::ByCounts(counts), options);
  REQUIRE(warm.ok());
  test::HiddenProcess hidden(64, 5);
  std::vector<float> out;
  for (int s = 0; s < 12; ++s) {
    (*warm)->Advance();
    REQUIRE(test::RunStep(engine.get(), Phase::kDecode, hidden.Next(1), 1, &out).ok());
  }
  return {engine->now_ns(), engine->stats()};
}

TEST_CASE("filled by the last run's use, a run loads less and takes no longer") {
  const auto uses = std::make_shared<Uses>();
  const Outcome cold = Run({}, uses), warm = Run(uses->counts, nullptr);
  CHECK(cold.stats.prefetch_issued == 0);
  CHECK(warm.stats.prefetch_issued > 0);
  CHECK(warm.stats.loads < cold.stats.loads);
  CHECK(warm.ns <= cold.ns);
}

TEST_CASE("filled by counts that are wrong, a run waits for no more than what moves already") {
  const Outcome cold = Run({}, nullptr), warm = Run(Counts(), nullptr);
  CHECK(warm.stats.prefetch_issued > 0);
  const SyntheticSource source{SyntheticShape{}};
  const double transfer_ns = 1e9 * static_cast<double>(source.layout(0, 0, 0).bytes) / kLink + 5000;
  CHECK(static_cast<double>(StalledNs(warm.stats) - StalledNs(cold.stats)) <=
        transfer_ns * static_cast<double>(warm.stats.prefetch_issued));
}

TEST_CASE("what the model lacks is refused") {
  const auto engine = Open(0.5, ClockKind::kWall);
  CHECK_FALSE(WarmStart::Create(nullptr, {}).ok());
  CHECK_FALSE(WarmStart::Create(engine.get(), {{3, 0}}).ok());
  CHECK_FALSE(WarmStart::Create(engine.get(), {{0, 8}}).ok());
  WarmStartOptions options;
  options.in_flight = 0;
  CHECK_FALSE(WarmStart::Create(engine.get(), {}, options).ok());
  auto none = WarmStart::Create(engine.get(), {});
  REQUIRE(none.ok());
  CHECK_FALSE((*none)->Advance());
}

}  // namespace
}  // namespace moert
