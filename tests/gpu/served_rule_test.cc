// The expert-cache rule in captured calls whose misses the device serves: the choices of the host's
// path, request by request; no call of the driver that waits (driver_counter.cc is preloaded).
#include <algorithm>
#include <random>

#include "served_chain.h"
#include "tests/support/run_engine.h"

namespace moert::test {
namespace {

/// Nothing is prefetched, so that eager and captured steps see the same experts.
const char* const kRules[] = {
    "on-demand+importance.residency+importance.routing:alpha=0.5",
    "on-demand+importance.routing:alpha=0.5,second_pass=1,weights=displaced",
    "on-demand+importance.residency+importance.routing:alpha=0.5,max_slots=0.2,max_mass=0.05"};

void CheckSameCounts(const EngineStats& a, const EngineStats& b) {
  CHECK(a.lookups == b.lookups);
  CHECK(a.hits_resident == b.hits_resident);
  CHECK(a.loads == b.loads);
  CHECK(a.bytes_loaded == b.bytes_loaded);
  CHECK(a.evictions == b.evictions);
  CHECK(a.slots == b.slots);
  CHECK(a.slots_substituted == b.slots_substituted);
  CHECK(a.mass == Approx(b.mass).epsilon(1e-5));
  CHECK(a.mass_substituted == Approx(b.mass_substituted).epsilon(1e-5));
  CHECK(a.worst_slot_share == Approx(b.worst_slot_share));
  CHECK(a.worst_mass_share == Approx(b.worst_mass_share).epsilon(1e-6));
}

TEST_CASE("eager and captured steps in turn choose as eager ones alone") {
  const char* const strategy = GENERATE(kRules[0], kRules[1], kRules[2]);
  SyntheticShape shape = Shape();
  shape.experts = GENERATE(64, 160);  // by the kernel for usual calls, and by the other
  for (const double fraction : {0.3, 0.65}) {
    INFO(strategy << " " << fraction << ", " << shape.experts << " experts");
    constexpr int64_t kHost = int64_t{256} << 20;
    Chain eager(strategy, fraction, shape, kMostRows, kHost);
    Chain turns(strategy, fraction, shape, kMostRows, kHost);
    REQUIRE(turns.engine()->graph_needs().capturable);
    // A call of no more experts than slots: of others the host pushes out what it has multiplied,
    // and the device reads experts where they lie.
    const std::vector<int64_t> batches =
        fraction < 0.5 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{1, 2, 5};
    for (const int64_t rows : batches) turns.Capture(rows);
    std::mt19937 rng(2);
    int64_t wrong = 0;
    for (int s = 0; s < 120; ++s) {
      const int64_t rows = batches[rng() % batches.size()];
      HiddenProcess step(Shape().hidden, 100 + rng() % 40);
      const std::vector<float> x = step.Next(rows);
      eager.SetRequests(RequestsOf(s, rows));
      turns.SetRequests(RequestsOf(s, rows));
      wrong += !SameBits(turns.Step(x, rows, rng() % 3 != 0), eager.Step(x, rows, false));
    }
    CHECK(wrong == 0);
    eager.SetRequests({});
    turns.SetRequests({});
    const EngineStats a = turns.Stats(), b = eager.Stats();
    CHECK(b.slots_substituted > 0);
    CheckSameCounts(a, b);
  }
}

TEST_CASE("calls of many rows choose as eager ones") {
  constexpr int64_t kMost = 48;  // of more than one launch that routes
  Chain eager(kRules[0], 0.3, Shape(), kMost), served(kRules[0], 0.3, Shape(), kMost);
  served.Capture(kMost);
  HiddenProcess process(Shape().hidden, 8);
  int64_t wrong = 0;
  for (int s = 0; s < 12; ++s) {
    std::vector<float> x = process.Next(2);  // again and again: a call has slots for its experts
    const std::vector<float> first = x;
    while (std::ssize(x) < kMost * Shape().hidden) x.insert(x.end(), first.begin(), first.end());
    wrong += !SameBits(served.Step(x, kMost, true), eager.Step(x, kMost, false));
  }
  CHECK(wrong == 0);
  CheckSameCounts(served.Stats(), eager.Stats());
}

TEST_CASE("where nothing may be substituted, importance has the bits of an engine that holds all") {
  Chain all("resident", 1);
  for (const char* strategy :
       {"importance:alpha=0,cpu=0", "importance:alpha=0.5,max_slots=0,cpu=0"}) {
    for (const double fraction : {0.1, 0.5}) {
      INFO(strategy << " " << fraction);
      Chain served(strategy, fraction);
      REQUIRE(served.engine()->graph_needs().capturable);
      CHECK(WrongReplays(&all, &served) == 0);
      const EngineStats stats = served.Stats();
      CHECK(stats.slots_substituted == 0);
      CHECK(stats.lookups ==
            stats.hits_resident + stats.hits_prefetched + stats.late + stats.loads);
    }
  }
}

TEST_CASE("budgets and leases, with nothing to be substituted") {
  Chain all("resident", 1), served("importance:alpha=0,cpu=0", 0.5);
  served.Capture(3);
  std::mt19937 rng(4);
  HiddenProcess process(Shape().hidden, 13);
  const auto next = [&] { return process.Next(3); };
  CHECK(WrongWhileBudgetsChange(&all, &served, &rng, next, [](int) { return true; }) == 0);
}

TEST_CASE("what is prefetched counts as there; caps hold for every request") {
  Chain served("importance:alpha=0.5,max_mass=0.04,cpu=0", 0.25);
  for (const int64_t rows : {1, 4}) served.Capture(rows);
  HiddenProcess process(Shape().hidden, 21);
  for (int s = 0; s < 150; ++s) {
    const int64_t rows = s % 2 == 0 ? 1 : 4;
    served.SetRequests(RequestsOf(s, rows));
    served.Step(process.Next(rows), rows, true);
  }
  served.SetRequests({});
  const EngineStats stats = served.Stats();
  CHECK(stats.slots_substituted > 0);
  CHECK(stats.mass_substituted <= 0.04 * stats.mass * (1 + 1e-6));
  CHECK(stats.worst_mass_share > 0);
  CHECK(stats.worst_mass_share <= 0.04 * (1 + 1e-6));
  CHECK(stats.lookups == stats.hits_resident + stats.hits_prefetched + stats.late + stats.loads);
}

TEST_CASE("a few steps by the rule, for the tools that watch every access") {
  Chain served("importance:alpha=0.5,max_mass=0.2,cpu=0", 0.25);
  const EngineStats stats = FewReplays(&served);
  CHECK(stats.slots_substituted > 0);
  CHECK(stats.worst_mass_share <= 0.2 * (1 + 1e-6));
}

TEST_CASE("no call waits, and a step is one graph launch") {
  Chain served("importance:cpu=0", 0.25);
  HiddenProcess process(Shape().hidden, 3);
  served.Capture(4);
  served.SetRequests({7, 8, 9, 10});
  served.Step(process.Next(4), 4, true);  // takes the blocks, and the requests' accounts
  CheckOneLaunchAStep(&served, 4);
}

TEST_CASE("a routing without scores cannot be captured under the rule") {
  Chain served(kRules[0], 0.5);
  const int64_t hidden = Shape().hidden;
  DeviceRowsBuffer rows(static_cast<size_t>(hidden));
  const StepId step = served.Begin(1);
  RoutedInput routing;
  routing.place = Place::kDevice;
  const auto pairs = static_cast<size_t>(Shape().top_k);
  routing.ids = {reinterpret_cast<const int32_t*>(rows.x()), pairs};
  routing.weights = {rows.x(), pairs};
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamBeginCapture(served.stream(), cudaStreamCaptureModeGlobal) == cudaSuccess);
  const absl::Status refused =
      served.engine()->ForwardRouted(step, 0, {rows.x(), DType::kF32, 1, hidden, hidden}, routing,
                                     {rows.y(), DType::kF32, 1, hidden, hidden});
  REQUIRE(cudaStreamEndCapture(served.stream(), &graph) == cudaSuccess);
  cudaGraphDestroy(graph);
  CHECK(refused.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(refused.message()), Catch::Contains("scores"));
  CHECK(!served.engine()->EndStep(step).ok());  // the step's first failure, once more
}

}  // namespace
}  // namespace moert::test
