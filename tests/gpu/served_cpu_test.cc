// Captured steps whose misses device and CPU share: outputs within the tolerance of the CPU's
// products, one launch a step, and right results from a device whose CPU does not answer
// (driver_counter.cc is preloaded).
#include "exec/cuda/cache/served_cpu.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "device_array.h"
#include "served_chain.h"
#include "tests/support/run_engine.h"
#include "tests/support/slow_link.h"

namespace moert::test {
namespace {

/// With its low version, for graded.
SyntheticShape OfLayers(int layers) {
  SyntheticShape shape = Shape();
  shape.layers = layers;
  shape.low_version = true;
  return shape;
}

/// An engine whose profile has so slow a link that the CPU takes what finds no free slot.
class Shared {
 public:
  Shared(const std::string& strategy, double fraction, int layers = 1)
      : chain_(strategy, fraction, OfLayers(layers), kMostRows, int64_t{64} << 20, /*apart=*/false,
               SlowLink()) {}
  Chain* operator->() { return &chain_; }
  Chain* get() { return &chain_; }

 private:
  Chain chain_;
};

/// An expert that the CPU computes has other last bits.
constexpr double kTolerance = 5e-3;

void CheckCounts(const EngineStats& stats) {
  const int64_t low_in_place = stats.low_answers - stats.low_loads;
  CHECK(stats.lookups == stats.hits_resident + stats.hits_prefetched + stats.late + stats.loads +
                             low_in_place + stats.cpu_computed);
  CHECK(stats.peak_bytes <= stats.budget_bytes);
  CHECK(stats.policy_fallbacks == 0);
}

/// Answers again whatever leaves the scope.
class PausedCpu {
 public:
  PausedCpu() { cuda::ServedCpu::Pause(true); }
  ~PausedCpu() { cuda::ServedCpu::Pause(false); }
};

TEST_CASE("replays with a CPU have the outputs of an engine that holds all") {
  const char* const strategy = GENERATE(
      "importance:alpha=0", "importance:alpha=0,cpu=turns", "on-demand+importance.placement",
      "graded:lo=low,loss=0,alpha=0", "graded:lo=low,loss=0,alpha=0,standby=1");
  INFO(strategy);
  Chain all("resident", 1, OfLayers(1));
  Shared served(strategy, 0.7);
  REQUIRE(served->engine()->graph_needs().capturable);
  CHECK_FALSE(served->engine()->exact());
  double worst = 0;
  for (const int64_t rows : {1, 3, 8}) {
    served->Capture(rows);
    HiddenProcess process(Shape().hidden, 5 + static_cast<uint64_t>(rows));
    for (int s = 0; s < 100; ++s) {
      const std::vector<float> x = process.Next(rows);
      worst = std::max(worst, RelativeError(served->Step(x, rows, true), all.Step(x, rows, false)));
    }
  }
  CHECK(worst < kTolerance);
  const EngineStats stats = served->Stats();
  CheckCounts(stats);
  CHECK(stats.cpu_computed > 300);
  CHECK(stats.balance_cpu_ns > 0);
  CHECK(stats.cpu_taken_back < 30);  // by a thread that lost its CPU
}

TEST_CASE("a few steps beside a CPU, for the tools that watch every access") {
  Shared served("importance:alpha=0", 0.3, /*layers=*/3);
  const EngineStats stats = FewReplays(served.get());
  CheckCounts(stats);
  CHECK(stats.cpu_computed + stats.cpu_taken_back > 0);  // that tools make slow
}

TEST_CASE("where loads are cheaper than the CPU, most misses are loaded") {
  Chain all("resident", 1, OfLayers(1));
  Chain served("importance:alpha=0", 0.7, OfLayers(1));  // the profile's own link
  served.Capture(1);
  HiddenProcess process(Shape().hidden, 2);
  double worst = 0;
  for (int s = 0; s < 200; ++s) {
    const std::vector<float> x = process.Next(1);
    worst = std::max(worst, RelativeError(served.Step(x, 1, true), all.Step(x, 1, false)));
  }
  CHECK(worst < kTolerance);
  const EngineStats stats = served.Stats();
  CheckCounts(stats);
  CHECK(stats.loads > stats.cpu_computed);
}

TEST_CASE("several layers, eager steps in between, budgets that change") {
  Chain all("resident", 1, OfLayers(3));
  Shared served("importance:alpha=0", 0.5, 3);
  for (const int64_t rows : {1, 3, 8}) served->Capture(rows);
  std::mt19937 rng(8);
  HiddenProcess process(Shape().hidden, 23);
  std::vector<double> errors;  // of rows
  for (int s = 0; s < 300; ++s) {
    if (s % 20 == 19) {
      const double fraction = 0.3 + 0.6 * static_cast<double>(rng() % 100) / 100;
      REQUIRE_OK(served->engine()->SetBudget(Budget::Fraction(fraction)));
    }
    const int64_t rows = s % 3 == 0 ? 1 : s % 3 == 1 ? 3 : 8;
    const std::vector<float> x = process.Next(rows);
    const std::vector<float> y = served->Step(x, rows, /*replay=*/s < 100 || s % 7 != 3);
    const std::vector<float> expected = all.Step(x, rows, false);
    for (int64_t r = 0; r < rows; ++r) {
      const auto from = r * Shape().hidden, to = from + Shape().hidden;
      errors.push_back(RelativeError({y.begin() + from, y.begin() + to},
                                     {expected.begin() + from, expected.begin() + to}));
    }
    CHECK(served->engine()->stats().pool_bytes <= served->engine()->memory().pool_bytes());
  }
  // Rounding sends some tokens of later layers to another expert.
  std::sort(errors.begin(), errors.end());
  CHECK(errors[errors.size() / 2] < kTolerance);
  CHECK(errors[errors.size() * 3 / 4] < 0.1);
  CHECK(errors.back() < 2);
  CHECK(served->Stats().cpu_computed > 100);
}

TEST_CASE("a CPU that does not answer costs one deadline, and the device has the bits") {
  Chain all("resident", 1, OfLayers(3));
  Shared served("importance:alpha=0", 0.6, 3);
  for (const int64_t rows : {1, 8}) served->Capture(rows);
  HiddenProcess process(Shape().hidden, 3);
  int64_t wrong = 0;
  {
    const PausedCpu paused;
    for (int s = 0; s < 60; ++s) {
      const int64_t rows = s % 2 == 0 ? 1 : 8;
      const std::vector<float> x = process.Next(rows);
      wrong += !SameBits(served->Step(x, rows, true), all.Step(x, rows, false));
    }
    CHECK(wrong == 0);
    const EngineStats stats = served->Stats();
    CheckCounts(stats);
    CHECK(stats.cpu_computed == 0);
    CHECK(stats.cpu_taken_back == 1);
  }
  // It answers what nobody waits for, and is given misses again.
  for (int s = 0; s < 60; ++s) served->Step(process.Next(8), 8, true);
  const EngineStats stats = served->Stats();
  CheckCounts(stats);
  CHECK(stats.cpu_computed > 60);
}

TEST_CASE("a CPU that stops now and then") {
  Chain all("resident", 1, OfLayers(1));
  Shared served("importance:alpha=0", 0.6);
  served->Capture(4);
  HiddenProcess process(Shape().hidden, 31);
  std::mt19937 rng(12);
  double worst = 0;
  for (int s = 0; s < 300; ++s) {
    cuda::ServedCpu::Pause(rng() % 4 == 0);
    const std::vector<float> x = process.Next(4);
    worst = std::max(worst, RelativeError(served->Step(x, 4, true), all.Step(x, 4, false)));
  }
  cuda::ServedCpu::Pause(false);
  CHECK(worst < kTolerance);
  const EngineStats stats = served->Stats();
  CheckCounts(stats);
  CHECK(stats.cpu_computed > 100);
  CHECK(stats.cpu_taken_back > 10);
}

TEST_CASE("a graph that is launched outside of steps, while the thread sleeps") {
  Chain all("resident", 1, OfLayers(3));
  Shared served("importance:alpha=0", 0.6, 3);
  served->Capture(3);
  HiddenProcess process(Shape().hidden, 6);
  for (int s = 0; s < 40; ++s) served->Step(process.Next(3), 3, true);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  const EngineStats before = served->engine()->stats();
  for (int s = 0; s < 5; ++s) {  // the CPU takes part in none
    const std::vector<float> x = process.Next(3);
    served->Set(x);
    served->Launch(3);
    CHECK(SameBits(served->Get(3), all.Step(x, 3, false)));
  }
  for (int s = 0; s < 40; ++s) served->Step(process.Next(3), 3, true);
  const EngineStats after = served->Stats();
  CheckCounts(after);
  CHECK(after.cpu_taken_back > before.cpu_taken_back);
  CHECK(after.cpu_computed > before.cpu_computed);
}

TEST_CASE("an engine goes while its CPU has a job that it did not answer") {
  const PausedCpu paused;
  for (int life = 0; life < 3; ++life) {
    Shared served("importance:alpha=0", 0.4, 3);
    served->Capture(8);
    HiddenProcess process(Shape().hidden, 9);
    for (int s = 0; s < 20; ++s) served->Step(process.Next(8), 8, true);
    CHECK(served->Stats().cpu_taken_back == 1);
  }
}

TEST_CASE("no call waits, and a step is one graph launch") {
  for (const char* strategy : {"importance", "graded:lo=low"}) {
    Shared served(strategy, 0.6, 3);
    HiddenProcess process(Shape().hidden, 3);
    for (const int64_t rows : {1, 8}) {
      served->Capture(rows);
      served->SetRequests({1, 2, 3, 4, 5, 6, 7, 8});
      served->Step(process.Next(rows), rows, true);  // takes the blocks, and the accounts
      CheckOneLaunchAStep(served.get(), rows);
    }
  }
}

TEST_CASE("a routing that the host left on the device, which names nobody for some slots") {
  constexpr int64_t kRows = 3;
  const SyntheticShape shape = OfLayers(3);
  const auto pairs = static_cast<size_t>(kRows * shape.top_k);
  std::vector<float> given(pairs);
  for (size_t i = 0; i < pairs; ++i) {
    given[i] = 1.0f / static_cast<float>(2 + i % static_cast<size_t>(shape.top_k));
  }
  DeviceArray<int32_t> ids(pairs);
  const DeviceArray<float> weights(given);
  Chain all("resident", 1, shape);
  Shared served("on-demand+importance.placement", 0.5, 3);
  served->Capture(kRows, ids.get(), weights.get());
  std::mt19937 rng(23);
  HiddenProcess process(shape.hidden, 19);
  double worst = 0;
  for (int s = 0; s < 100; ++s) {
    ids.Set(DrawnExperts(kRows, &rng));
    const std::vector<float> x = process.Next(kRows);
    const std::vector<float> replayed = served->Step(x, kRows, true);
    const StepId step = all.Begin(kRows);
    all.Set(x);
    all.ForwardRouted(step, kRows, ids.get(), weights.get());
    worst = std::max(worst, RelativeError(replayed, all.Get(kRows)));
    REQUIRE_OK(all.engine()->EndStep(step));
  }
  CHECK(worst < kTolerance);
  const EngineStats stats = served->Stats();
  CheckCounts(stats);
  CHECK(stats.cpu_computed > 100);
}

TEST_CASE("graded's bound holds for every request, a CPU beside it") {
  const double loss = 0.05;
  Shared served("graded:lo=low,loss=0.05", 0.6, 3);
  for (const int64_t rows : {1, 8}) served->Capture(rows);
  HiddenProcess process(Shape().hidden, 21);
  for (int s = 0; s < 600; ++s) {
    const int64_t rows = s % 2 == 0 ? 1 : 8;
    served->SetRequests(RequestsOf(s, rows));
    served->Step(process.Next(rows), rows, true);
  }
  served->SetRequests({});
  const EngineStats stats = served->Stats();
  CHECK(stats.worst_low_share + stats.worst_mass_share <= loss * (1 + 1e-6));
  CHECK(stats.cpu_computed > 100);
}

}  // namespace
}  // namespace moert::test
