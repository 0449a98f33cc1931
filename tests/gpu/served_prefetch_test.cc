// Prefetches of captured calls, served by the device: the bits of an engine that holds everything,
// whatever arrives in time, too late or not at all; no call of the driver that waits
// (driver_counter.cc is preloaded).
#include <chrono>
#include <cstdio>
#include <random>

#include "served_chain.h"
#include "tests/support/layer_rows.h"

namespace moert::test {
namespace {

Chain Apart(const std::string& strategy, double fraction, const SyntheticShape& shape) {
  return Chain(strategy, fraction, shape, kMostRows, int64_t{512} << 20, /*apart=*/true);
}

void Print(const char* what, double fraction, const EngineStats& s) {
  std::printf(
      "%s %.2f: %lld lookups, %lld resident, %lld prefetched, %lld late, %lld loads; %lld issued, "
      "%lld used, %lld dropped\n",
      what, fraction, static_cast<long long>(s.lookups), static_cast<long long>(s.hits_resident),
      static_cast<long long>(s.hits_prefetched), static_cast<long long>(s.late),
      static_cast<long long>(s.loads), static_cast<long long>(s.prefetch_issued),
      static_cast<long long>(s.prefetch_useful), static_cast<long long>(s.prefetch_cancelled));
}

/// Steps of 1, 3 and 8 tokens at several budgets, whose rows are those of Rows.
template <typename Rows>
void CheckAtAnyBudget(const char* strategy, Chain* all) {
  const SyntheticShape shape = WideShape();
  for (const double fraction : {0.1, 0.25, 0.5, 0.9}) {
    INFO(strategy << " " << fraction);
    Chain served = Apart(strategy, fraction, shape);
    REQUIRE(served.engine()->graph_needs().capturable);
    std::mt19937 rng(3);
    int64_t wrong = 0;
    for (const int64_t rows : {1, 3, 8}) {
      served.Capture(rows);
      Rows next(shape.hidden, 5 + static_cast<uint64_t>(rows));
      for (int s = 0; s < 40; ++s) {
        const std::vector<float> x = LayersOf(shape, rows, &next, &rng);
        wrong += !SameBits(served.Step(x, rows, true), all->Step(x, rows, false));
      }
    }
    CHECK(wrong == 0);
    const EngineStats stats = served.Stats();
    CHECK(stats.lookups == stats.hits_resident + stats.hits_prefetched + stats.late + stats.loads);
    CHECK(stats.loads > 0);
    if (fraction < 0.9) CHECK(stats.prefetch_issued > 0);
    if (fraction < 0.9) CHECK(stats.prefetch_useful > 0);
    CHECK(stats.prefetch_useful <= stats.prefetch_issued);
    CHECK(stats.slots == int64_t{40} * (1 + 3 + 8) * shape.layers * shape.top_k);
    CHECK(stats.peak_bytes <= stats.budget_bytes);
    Print(strategy, fraction, stats);
  }
}

TEST_CASE("prefetching changes no bit, at any budget and batch") {
  Chain all = Apart("resident", 1, WideShape());
  for (const char* strategy :
       {"fate", "on-demand+fate.prefetch", "on-demand+importance.residency+fate.prefetch"}) {
    CheckAtAnyBudget<HiddenProcess>(strategy, &all);
  }
  CheckAtAnyBudget<RecurringRows>("fate", &all);
}

TEST_CASE("no call waits, and a step is one graph launch, with prefetches in it") {
  const SyntheticShape shape = WideShape();
  for (const double fraction : {0.25, 0.5, 0.9}) {
    Chain served = Apart("fate", fraction, shape);
    HiddenProcess process(shape.hidden, 3);
    std::mt19937 rng(1);
    served.Capture(4);
    served.Step(LayersOf(shape, 4, &process, &rng), 4, true);  // takes the blocks
    CheckOneLaunchAStep(&served, 4);
  }
}

TEST_CASE("budgets, eager steps and leases between steps that prefetch") {
  const SyntheticShape shape = WideShape();
  Chain all = Apart("resident", 1, shape), served = Apart("fate", 0.5, shape);
  served.Capture(3);
  std::mt19937 rng(4);
  HiddenProcess process(shape.hidden, 13);
  const auto next = [&] { return LayersOf(shape, 3, &process, &rng); };
  const auto replayed = [](int s) { return s % 11 != 5; };
  CHECK(WrongWhileBudgetsChange(&all, &served, &rng, next, replayed) == 0);
}

TEST_CASE("graphs of a layer each, as hosts make them between their own kernels") {
  const SyntheticShape shape = WideShape();
  Chain all = Apart("resident", 1, shape), served = Apart("fate", 0.3, shape);
  const int64_t hidden = shape.hidden;
  constexpr int64_t kRows = 2;
  DeviceRowsBuffer rows(static_cast<size_t>(shape.layers * kRows * hidden));
  std::vector<cudaGraphExec_t> graphs(static_cast<size_t>(shape.layers));
  const StepId recorded = served.Begin(kRows);
  for (int l = 0; l < shape.layers; ++l) {
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamBeginCapture(served.stream(), cudaStreamCaptureModeGlobal) == cudaSuccess);
    const int64_t at = l * kRows * hidden;
    REQUIRE_OK(served.engine()->Forward(recorded, l,
                                        {rows.x() + at, DType::kF32, kRows, hidden, hidden},
                                        {rows.y() + at, DType::kF32, kRows, hidden, hidden}));
    REQUIRE(cudaStreamEndCapture(served.stream(), &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&graphs[static_cast<size_t>(l)], graph, 0) == cudaSuccess);
    cudaGraphDestroy(graph);
  }
  REQUIRE_OK(served.engine()->EndStep(recorded));
  std::mt19937 rng(6);
  HiddenProcess process(hidden, 2);
  int64_t wrong = 0;
  for (int s = 0; s < 60; ++s) {
    const std::vector<float> x = LayersOf(shape, kRows, &process, &rng);
    const StepId step = served.Begin(kRows);
    rows.Set(x);
    REQUIRE(cudaStreamSynchronize(rows.stream()) == cudaSuccess);
    for (int l = 0; l < shape.layers; ++l) {
      if (s % 9 == 8 && l == 2) continue;  // nobody asks for what was prefetched
      REQUIRE(cudaGraphLaunch(graphs[static_cast<size_t>(l)], served.stream()) == cudaSuccess);
    }
    REQUIRE(cudaStreamSynchronize(served.stream()) == cudaSuccess);
    REQUIRE_OK(served.engine()->EndStep(step));
    if (s % 9 != 8) wrong += !SameBits(rows.Get(), all.Step(x, kRows, false));
  }
  CHECK(wrong == 0);
  const EngineStats stats = served.Stats();
  CHECK(stats.prefetch_useful > 0);
  Print("one graph a layer", 0.3, stats);
  for (cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
}

TEST_CASE("a few steps, few enough for the tools that watch every access") {
  SyntheticShape shape = Shape();
  shape.experts = 32;
  Chain all = Apart("resident", 1, shape), served = Apart("fate", 0.4, shape);
  served.Capture(2);
  std::mt19937 rng(9);
  HiddenProcess process(shape.hidden, 4);
  for (int s = 0; s < 12; ++s) {
    const std::vector<float> x = LayersOf(shape, 2, &process, &rng);
    CHECK(SameBits(served.Step(x, 2, true), all.Step(x, 2, false)));
  }
  CHECK(served.Stats().prefetch_issued > 0);
}

// Slow: gpu.served_prefetch_test [slow]
TEST_CASE("a churn of transitions, no wrong bit", "[.][slow]") {
  SyntheticShape shape = Shape();
  shape.layers = 6;
  Chain all = Apart("resident", 1, shape);
  all.Capture(kMostRows);
  std::mt19937 rng(8);
  HiddenProcess process(shape.hidden, 21);
  constexpr int kInputs = 64;
  std::vector<std::vector<float>> inputs, expected;
  for (int i = 0; i < kInputs; ++i) {
    inputs.push_back(LayersOf(shape, kMostRows, &process, &rng));
    expected.push_back(all.Step(inputs.back(), kMostRows, true));
  }
  Chain served = Apart("fate", 0.3, shape);
  served.Capture(kMostRows);
  const auto begin = std::chrono::steady_clock::now();
  int64_t wrong = 0, steps = 0;
  EngineStats stats;
  const auto transitions = [&] { return stats.loads + stats.prefetch_issued + stats.evictions; };
  while (transitions() < 1'000'000 &&
         std::chrono::steady_clock::now() - begin < std::chrono::seconds(50)) {
    if (++steps % 64 == 0) {
      REQUIRE_OK(served.engine()->SetBudget(Budget::Fraction(0.1 + 0.8 * (rng() % 100) / 100)));
    }
    const size_t i = rng() % kInputs;
    wrong += !SameBits(served.Step(inputs[i], kMostRows, true), expected[i]);
    stats = served.engine()->stats();
    if (stats.pool_bytes > served.engine()->memory().pool_bytes()) ++wrong;
  }
  CHECK(wrong == 0);
  std::printf("%lld steps, %lld transitions\n", static_cast<long long>(steps),
              static_cast<long long>(transitions()));
  Print("churn", 0.3, served.Stats());
}

}  // namespace
}  // namespace moert::test
