// Misses of captured calls, served by the device: the bits of an engine that holds everything, the
// decisions of the host's path, no call of the driver that waits (driver_counter.cc is preloaded).
#include <cstdio>
#include <random>

#include "device_array.h"
#include "other_capture.h"
#include "served_chain.h"
#include "tests/support/run_engine.h"

namespace moert::test {
namespace {

/// Strategies whose rules decide on the device as on the host.
const char* const kRuled[] = {"on-demand", "on-demand+importance.residency"};

TEST_CASE("the bits of an engine that holds everything, at any budget and batch") {
  Chain all("resident", 1);
  const std::pair<const char*, double> cells[] = {{kRuled[0], 0.02}, {kRuled[0], 0.25},
                                                  {kRuled[0], 0.5},  {kRuled[0], 0.9},
                                                  {kRuled[1], 0.25}, {kRuled[1], 0.9}};
  for (const auto& [strategy, fraction] : cells) {
    INFO(strategy << " " << fraction);
    Chain served(strategy, fraction);
    REQUIRE(served.engine()->graph_needs().capturable);
    int64_t wrong = 0;
    for (const int64_t rows : {1, 2, 3, 5, 8}) {
      served.Capture(rows);
      HiddenProcess process(Shape().hidden, 5 + static_cast<uint64_t>(rows));
      for (int s = 0; s < 40; ++s) {
        const std::vector<float> x = process.Next(rows);
        wrong += !SameBits(served.Step(x, rows, true), all.Step(x, rows, false));
      }
    }
    CHECK(wrong == 0);
    const EngineStats stats = served.Stats();
    CHECK(stats.lookups == stats.hits_resident + stats.loads);
    CHECK(stats.loads > 0);
    CHECK(stats.slots == int64_t{40} * (1 + 2 + 3 + 5 + 8) * Shape().layers * Shape().top_k);
    CHECK(stats.peak_bytes <= stats.budget_bytes);
    std::printf("%.2f: %lld lookups, %lld hits, %lld loads, %lld evictions\n", fraction,
                static_cast<long long>(stats.lookups), static_cast<long long>(stats.hits_resident),
                static_cast<long long>(stats.loads), static_cast<long long>(stats.evictions));
  }
}

TEST_CASE("so are those of calls of many rows") {
  SyntheticShape shape = Shape();
  shape.experts = 8;
  shape.top_k = 2;
  constexpr int64_t kRows = 320;  // whole tiles of family P, and a rest
  Chain all("resident", 1, shape, kRows), served("on-demand", 0.4, shape, kRows);
  served.Capture(kRows);
  HiddenProcess process(shape.hidden, 17);
  for (int s = 0; s < 10; ++s) {
    const std::vector<float> x = process.Next(kRows);
    CHECK(SameBits(served.Step(x, kRows, true), all.Step(x, kRows, false)));
  }
}

TEST_CASE("a row's result is the same whoever shares its batch, up to 32 rows") {
  for (const char* strategy : {"on-demand", "fate"}) {
    INFO(strategy);
    Chain served(strategy, 0.25, Shape(), 32);
    served.Capture(1);
    HiddenProcess process(Shape().hidden, 29);
    int64_t wrong = 0;
    for (const int64_t rows : {2, 3, 4, 5, 6, 7, 8, 16, 32}) {
      served.Capture(rows);
      for (int s = 0; s < 3; ++s) {
        const std::vector<float> x = process.Next(rows);
        const std::vector<float> together = served.Step(x, rows, true);
        for (int64_t r = 0; r < rows; r += 1 + rows / 8) {
          const auto row = [&](const std::vector<float>& of) {
            const auto begin = of.begin() + r * Shape().hidden;
            return std::vector<float>(begin, begin + Shape().hidden);
          };
          wrong += !SameBits(served.Step(row(x), 1, true), row(together));
        }
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("batches up to 64") {
  constexpr int64_t kMost = 64;
  Chain all("resident", 1, Shape(), kMost);
  for (const char* strategy : {"on-demand", "fate"}) {
    INFO(strategy);
    Chain served(strategy, 0.25, Shape(), kMost);
    HiddenProcess process(Shape().hidden, 31);
    int64_t wrong = 0;
    for (const int64_t rows : {12, 32, 33, 48, 64}) {
      served.Capture(rows);
      for (int s = 0; s < 5; ++s) {
        const std::vector<float> x = process.Next(rows);
        wrong += !SameBits(served.Step(x, rows, true), all.Step(x, rows, false));
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("a routing that the host left on the device") {
  constexpr int64_t kRows = 3;
  const auto pairs = static_cast<size_t>(kRows * Shape().top_k);
  DeviceArray<int32_t> ids(pairs);
  const DeviceArray<float> weights(
      std::vector<float>(pairs, 1.0f / static_cast<float>(Shape().top_k)));
  Chain all("resident", 1), served("on-demand", 0.25);
  all.Capture(kRows, ids.get(), weights.get());
  served.Capture(kRows, ids.get(), weights.get());
  std::mt19937 rng(23);
  HiddenProcess process(Shape().hidden, 19);
  int64_t wrong = 0;
  for (int s = 0; s < 40; ++s) {
    ids.Set(DrawnExperts(kRows, &rng));
    const std::vector<float> x = process.Next(kRows);
    wrong += !SameBits(served.Step(x, kRows, true), all.Step(x, kRows, true));
  }
  CHECK(wrong == 0);
  CHECK(served.Stats().loads > 0);
}

TEST_CASE("no call waits, and a step is one graph launch") {
  for (const double fraction : {0.25, 0.5, 0.9}) {
    Chain served("on-demand", fraction);
    HiddenProcess process(Shape().hidden, 3);
    served.Capture(4);
    served.Step(process.Next(4), 4, true);  // takes the blocks
    CheckOneLaunchAStep(&served, 4);
    CHECK(served.engine()->stats().graph_captured);
  }
}

TEST_CASE("an engine whose misses the device serves comes beside another thread's capture") {
  Chain("on-demand", 0.5).Capture(4);  // loads every kernel
  OtherCapture capture(cudaStreamCaptureModeThreadLocal, cudaStreamDefault);
  std::vector<float> y;
  {
    Chain served("on-demand", 0.5);
    y = served.Step(HiddenProcess(Shape().hidden, 3).Next(4), 4, false);
  }
  CHECK(capture.Whole());
  CHECK(y.size() > 0);
}

TEST_CASE("an engine with recorded layers shrinks and goes beside another thread's capture") {
  HiddenProcess process(Shape().hidden, 3);
  for (const char* strategy : {"on-demand", "resident"}) {
    INFO(strategy);
    const bool all = std::string(strategy) == "resident";
    auto served = std::make_unique<Chain>(strategy, all ? 1 : 0.9);
    served->Capture(4);
    served->Step(process.Next(4), 4, true);
    OtherCapture capture(cudaStreamCaptureModeThreadLocal);
    served->Step(process.Next(4), 4, true);
    const absl::Status shrunk =
        all ? absl::OkStatus() : served->engine()->SetBudget(Budget::Fraction(0.2));
    served.reset();
    const bool whole = capture.Whole();
    REQUIRE_OK(shrunk);
    CHECK(whole);
  }
}

TEST_CASE("eager and captured steps in turn decide as eager ones alone") {
  const char* const strategy = GENERATE(kRuled[0], kRuled[1]);
  for (const double fraction : {0.3, 0.6}) {
    INFO(strategy << " " << fraction);
    Chain eager(strategy, fraction), turns(strategy, fraction);
    std::mt19937 rng(2);
    turns.Capture(1);
    turns.Capture(2);
    int64_t wrong = 0;
    for (int s = 0; s < 120; ++s) {
      const int64_t rows = 1 + static_cast<int64_t>(rng() % 2);
      HiddenProcess step(Shape().hidden, 100 + rng() % 40);
      const std::vector<float> x = step.Next(rows);
      wrong += !SameBits(turns.Step(x, rows, rng() % 3 != 0), eager.Step(x, rows, false));
    }
    CHECK(wrong == 0);
    const EngineStats a = turns.Stats(), b = eager.Stats();
    CHECK(a.lookups == b.lookups);
    CHECK(a.hits_resident == b.hits_resident);
    CHECK(a.loads == b.loads);
    CHECK(a.bytes_loaded == b.bytes_loaded);
    CHECK(a.evictions == b.evictions);
    for (int l = 0; l < Shape().layers; ++l) {
      const auto here = turns.engine()->ResidencyOf(l), there = eager.engine()->ResidencyOf(l);
      REQUIRE_OK(here.status());
      REQUIRE_OK(there.status());
      CHECK(*here == *there);
    }
  }
}

TEST_CASE("budgets change between steps, and leases within them") {
  Chain all("resident", 1), served("on-demand", 0.5);
  served.Capture(3);
  std::mt19937 rng(4);
  HiddenProcess process(Shape().hidden, 13);
  const auto next = [&] { return process.Next(3); };
  const auto replayed = [](int) { return true; };
  CHECK(WrongWhileBudgetsChange(&all, &served, &rng, next, replayed) == 0);
}

TEST_CASE("where the device cannot serve, a captured call says why") {
  Chain unknown("on-demand", 0.5, Shape(), 1, -1), small("on-demand", 0.5, Shape(), 1, 1 << 20);
  for (Chain* chain : {&unknown, &small}) {
    CHECK(!chain->engine()->graph_needs().capturable);
    const int64_t hidden = Shape().hidden;
    DeviceRowsBuffer rows(static_cast<size_t>(hidden));
    const StepId step = chain->Begin(1);
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamBeginCapture(chain->stream(), cudaStreamCaptureModeGlobal) == cudaSuccess);
    const absl::Status refused =
        chain->engine()->Forward(step, 0, {rows.x(), DType::kF32, 1, hidden, hidden},
                                 {rows.y(), DType::kF32, 1, hidden, hidden});
    REQUIRE(cudaStreamEndCapture(chain->stream(), &graph) == cudaSuccess);
    cudaGraphDestroy(graph);
    CHECK(refused.code() == absl::StatusCode::kFailedPrecondition);
    CHECK_THAT(std::string(refused.message()), Catch::Contains("host_budget"));
    REQUIRE_OK(chain->engine()->EndStep(step));
  }
}

TEST_CASE("a record that cannot be read when the engine opens is the host's to bring") {
  auto source = std::make_shared<SyntheticSource>(Shape());
  source->set_broken(true);
  auto engine = Engine::Create(source, Options("on-demand", 0.5));
  REQUIRE_OK(engine.status());
  CHECK(!(*engine)->graph_needs().capturable);
  source->set_broken(false);
  DeviceRowsBuffer device(static_cast<size_t>(Shape().hidden));
  std::vector<float> outputs;
  REQUIRE_OK(RunDeviceStep(engine->get(), Phase::kDecode, HiddenProcess(Shape().hidden, 1).Next(1),
                           1, &device, &outputs));
}

}  // namespace
}  // namespace moert::test
