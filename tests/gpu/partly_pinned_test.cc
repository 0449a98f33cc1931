// Captured steps of engines whose pinned memory does not hold every record: the device decides, and
// the CPU computes what it cannot read. Outputs are those of an engine that pins all, within the
// tolerance of the CPU's products, and what is used comes into pinned memory.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device_array.h"
#include "exec/backend.h"
#include "exec/cuda/cache/served_cpu.h"
#include "fmt/format.h"
#include "served_chain.h"
#include "tests/support/layer_rows.h"

namespace moert::test {
namespace {

/// An expert that the CPU computes has other last bits.
constexpr double kTolerance = 5e-3;

int64_t AllBytes(const SyntheticShape& shape) { return UnpinnedBytes(SyntheticSource(shape), {0}); }

/// An engine with a share of the records' bytes in pinned memory, whose layers have rows of their
/// own.
class Partly {
 public:
  Partly(const std::string& strategy, double fraction, double pinned,
         const SyntheticShape& shape = WideShape(), int64_t most_rows = kMostRows)
      : host_budget_(static_cast<int64_t>(pinned * static_cast<double>(AllBytes(shape)))),
        chain_(strategy, fraction, shape, most_rows, host_budget_, /*apart=*/true) {}
  Chain* operator->() { return &chain_; }

  /// The counts of all steps so far.
  EngineStats Checked() {
    const EngineStats stats = chain_.Stats();
    CAPTURE(stats.hits_resident, stats.hits_prefetched, stats.late, stats.loads, stats.fills,
            stats.cpu_computed);
    // Eager steps fill slots with what the CPU computed: loads that no lookup waits for.
    const int64_t low_in_place = stats.low_answers - stats.low_loads;
    CHECK(stats.lookups == stats.hits_resident + stats.hits_prefetched + stats.late + stats.loads -
                               stats.fills + stats.cpu_computed + low_in_place);
    CHECK(stats.cpu_below <= stats.cpu_computed);
    CHECK(stats.pinned_bytes <= host_budget_);
    most_bytes_ = std::max(most_bytes_, stats.budget_bytes);
    CHECK(stats.peak_bytes <= most_bytes_);
    CHECK(stats.policy_fallbacks == 0);
    return stats;
  }

 private:
  const int64_t host_budget_;
  Chain chain_;
  // The largest budget that the engine had when it opened and at counts.
  int64_t most_bytes_ = chain_.engine()->stats().budget_bytes;
};

/// The largest error of steps of 1, 3 and 8 rows, each replayed `steps` times.
template <typename Rows>
double WorstReplay(Partly* partly, Chain* all, int steps, int eager_every = 0) {
  const SyntheticShape shape = WideShape();
  std::mt19937 rng(3);
  double worst = 0;
  for (const int64_t rows : {1, 3, 8}) {
    (*partly)->Capture(rows);
    Rows next(shape.hidden, 5 + static_cast<uint64_t>(rows));
    for (int s = 0; s < steps; ++s) {
      const std::vector<float> x = LayersOf(shape, rows, &next, &rng);
      const bool replay = eager_every == 0 || s % eager_every != 0;
      worst = std::max(worst,
                       RelativeError((*partly)->Step(x, rows, replay), all->Step(x, rows, false)));
    }
  }
  return worst;
}

Chain PinningAll(const char* strategy, double fraction) {
  return Chain(strategy, fraction, WideShape(), kMostRows, AllBytes(WideShape()), /*apart=*/true);
}

TEST_CASE("replays have the outputs of an engine that pins all, whatever is pinned") {
  Chain all = PinningAll("resident", 1);
  for (const char* strategy :
       {"on-demand:cpu=1", "fate:cpu=1", "importance:alpha=0", "importance:alpha=0,cpu=turns"}) {
    for (const double pinned : {0.0, 0.3, 0.6, 0.97}) {
      for (const double fraction : {0.15, 0.5}) {
        CAPTURE(strategy, pinned, fraction);
        Partly partly(strategy, fraction, pinned);
        REQUIRE(partly->engine()->graph_needs().capturable);
        CHECK_FALSE(partly->engine()->exact());
        CHECK(WorstReplay<HiddenProcess>(&partly, &all, 40) < kTolerance);
        const EngineStats stats = partly.Checked();
        CHECK(stats.cpu_below > 0);
        CHECK(stats.cpu_read_bytes > 0);
        CHECK(stats.graph_captured);
        if (pinned == 0) {
          CHECK(stats.hits_resident + stats.loads == 0);
          CHECK(stats.pinned_bytes == 0);
        } else {
          CHECK(stats.hits_resident > 0);
          CHECK(stats.pinned_bytes > 0);
        }
      }
    }
  }
}

TEST_CASE("the lookups by tier add up to those of an engine that pins all") {
  for (const char* strategy : {"on-demand:cpu=1", "fate:cpu=1"}) {
    CAPTURE(strategy);
    Chain all = PinningAll("resident", 1);
    std::vector<int64_t> lookups, below;
    for (const double pinned : {0.25, 0.5, 0.75, 1.0}) {
      Partly partly(strategy, 0.25, pinned);
      CHECK(WorstReplay<RecurringRows>(&partly, &all, 60) < kTolerance);
      const EngineStats stats = partly.Checked();
      lookups.push_back(stats.lookups);
      below.push_back(stats.cpu_below);
    }
    CHECK(lookups == std::vector<int64_t>(4, lookups[0]));
    CHECK(std::is_sorted(below.rbegin(), below.rend()));
    CHECK(below.front() > 0);
    CHECK(below.back() == 0);
  }
}

SyntheticShape TwoVersions() {
  SyntheticShape shape = WideShape();
  shape.low_version = true;
  return shape;
}

/// Pinned bytes that all low versions take, as a share of the others'.
double LowShare() {
  const int64_t low = UnpinnedBytes(SyntheticSource(TwoVersions()), {1}) + 1;
  return static_cast<double>(low) / static_cast<double>(AllBytes(TwoVersions()));
}

TEST_CASE("graded keeps to its bound with high versions beside pinned memory, as others do") {
  Chain all("resident", 1, TwoVersions(), kMostRows, AllBytes(TwoVersions()), /*apart=*/true);
  const int standby = GENERATE(0, 1);
  for (const double pinned : {0.0, 0.4}) {
    for (const double loss : {0.0, 0.2}) {
      CAPTURE(standby, pinned, loss);
      Partly partly(fmt::format("graded:lo=low,cpu=1,alpha=0,loss={},standby={}", loss, standby),
                    standby == 1 ? 0.75 : 0.25, pinned + LowShare(), TwoVersions());
      REQUIRE(partly->engine()->graph_needs().capturable);
      const double error = WorstReplay<HiddenProcess>(&partly, &all, 40);
      const EngineStats stats = partly.Checked();
      CHECK(stats.graph_captured);
      CHECK(stats.cpu_below > 0);
      CHECK(stats.worst_low_share <= loss * (1 + 1e-6));
      if (loss == 0) CHECK(error < kTolerance);
      // Where low versions have to be brought, the CPU may spare them all.
      CHECK((stats.low_answers > 0) >= (loss > 0 && standby == 1));
    }
  }
}

TEST_CASE("low versions that are brought have to be pinned, and the refusal names them") {
  Partly partly("graded:lo=low,cpu=1,alpha=0,loss=0.2", 0.25, LowShare() / 2, TwoVersions());
  CHECK_FALSE(partly->engine()->graph_needs().capturable);
  CHECK_THAT(std::string(partly->engine()->graph_needs().obstacle),
             Catch::Contains("records in low") && Catch::Contains("host_budget"));
}

TEST_CASE("eager steps, prefetches and budgets between replays") {
  Chain all = PinningAll("resident", 1);
  for (const char* strategy : {"on-demand:cpu=1", "fate:cpu=1"}) {
    CAPTURE(strategy);
    Partly partly(strategy, 0.4, 0.5);
    for (const double fraction : {0.2, 0.6, 0.4}) {
      REQUIRE_OK(partly->engine()->SetBudget(Budget::Fraction(fraction)));
      CHECK(WorstReplay<RecurringRows>(&partly, &all, 30, /*eager_every=*/7) < kTolerance);
      CHECK(partly.Checked().cpu_below > 0);
    }
    const EngineStats stats = partly.Checked();
    if (std::string(strategy) == "fate:cpu=1") CHECK(stats.prefetch_issued > 0);
  }
}

/// Steps of one row, routed on the device to eight experts from `first` on in every layer.
class SameExperts {
 public:
  SameExperts(Partly* partly, Chain* all) : partly_(partly), all_(all) {
    (*partly_)->Capture(1, ids_.get(), weights_.get());
  }
  double Run(int first, int steps) {
    std::vector<int32_t> ids;
    for (int k = 0; k < kTopK; ++k) ids.push_back(first + k);
    ids_.Set(ids);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    double worst = 0;
    for (int s = 0; s < steps; ++s) {
      const std::vector<float> x = process_.Next(kLayers);
      const std::vector<float> y = (*partly_)->Step(x, 1, true);
      const StepId step = all_->Begin(1);
      all_->Set(x);
      all_->ForwardRouted(step, 1, ids_.get(), weights_.get());
      worst = std::max(worst, RelativeError(y, all_->Get(1)));
      REQUIRE_OK(all_->engine()->EndStep(step));
    }
    return worst;
  }

  static constexpr int kTopK = 8, kLayers = 1;
  static SyntheticShape Shape() {
    SyntheticShape shape = WideShape();
    shape.layers = kLayers;
    return shape;
  }

 private:
  Partly* const partly_;
  Chain* const all_;
  DeviceArray<int32_t> ids_{kTopK};
  DeviceArray<float> weights_{std::vector<float>(kTopK, 0.125f)};
  HiddenProcess process_{Shape().hidden, 3};
};

TEST_CASE("records that are used come into pinned memory, instead of those that are not") {
  const SyntheticShape shape = SameExperts::Shape();
  Chain all("resident", 1, shape, kMostRows, AllBytes(shape), /*apart=*/true);
  // Slots for the eight of a token, pinned memory for 32 of 64 records.
  Partly partly("on-demand:cpu=1", 0.14, 0.5, shape);
  SameExperts same(&partly, &all);
  int64_t below = 0;
  for (int round = 0; round < 2; ++round) {
    for (const int first : {0, 12, 24, 36, 48}) {
      CHECK(same.Run(first, 40) < kTolerance);
      below = partly.Checked().cpu_below;
      // By now all eight are where the device reads them, or in its slots.
      CHECK(same.Run(first, 20) < kTolerance);
      CHECK(partly.Checked().cpu_below == below);
    }
  }
  const EngineStats stats = partly.Checked();
  CHECK(stats.pinned_swaps > 20);
  CHECK(stats.hits_resident > stats.lookups / 4);
}

TEST_CASE("a CPU that is late is waited for where nobody else can compute") {
  Chain all = PinningAll("resident", 1);
  Partly partly("on-demand:cpu=1", 0.15, 0);
  const SyntheticShape shape = WideShape();
  partly->Capture(3);
  HiddenProcess process(shape.hidden, 3);
  std::mt19937 rng(1);
  double worst = 0;
  for (int s = 0; s < 5; ++s) {
    cuda::ServedCpu::Pause(true);
    std::thread later([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      cuda::ServedCpu::Pause(false);
    });
    const std::vector<float> x = LayersOf(shape, 3, &process, &rng);
    worst = std::max(worst, RelativeError(partly->Step(x, 3, true), all.Step(x, 3, false)));
    later.join();
  }
  CHECK(worst < kTolerance);
  CHECK(partly.Checked().cpu_taken_back == 0);
}

TEST_CASE("a graph that is launched outside of steps, while the thread sleeps, finds the CPU") {
  Chain all = PinningAll("resident", 1);
  Partly partly("on-demand:cpu=1", 0.15, 0.3);
  const SyntheticShape shape = WideShape();
  partly->Capture(3);
  HiddenProcess process(shape.hidden, 6);
  std::mt19937 rng(1);
  for (int s = 0; s < 5; ++s) partly->Step(LayersOf(shape, 3, &process, &rng), 3, true);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  double worst = 0;
  for (int s = 0; s < 3; ++s) {
    const std::vector<float> x = LayersOf(shape, 3, &process, &rng);
    partly->Set(x);
    partly->Launch(3);
    worst = std::max(worst, RelativeError(partly->Get(3), all.Step(x, 3, false)));
  }
  CHECK(worst < kTolerance);
}

TEST_CASE("a record that cannot be read fails its step, and the next one is right") {
  const SyntheticShape shape = WideShape();
  auto source = std::make_shared<SyntheticSource>(shape);
  EngineOptions options = Options("on-demand:cpu=1", 0.15, 1);
  options.host_budget = 0;
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  REQUIRE((*engine)->graph_needs().capturable);
  DeviceRowsBuffer rows(static_cast<size_t>(shape.hidden));
  const auto run = [&](bool capture, cudaGraphExec_t* graph) {
    StepInfo info;
    info.rows = 1;
    info.stream = rows.stream();
    const auto step = (*engine)->BeginStep(info);
    REQUIRE_OK(step.status());
    const MatrixView x{rows.x(), DType::kF32, 1, shape.hidden, shape.hidden};
    const MutableMatrixView y{rows.y(), DType::kF32, 1, shape.hidden, shape.hidden};
    if (capture) {
      cudaGraph_t made = nullptr;
      REQUIRE(cudaStreamBeginCapture(rows.stream(), cudaStreamCaptureModeGlobal) == cudaSuccess);
      REQUIRE_OK((*engine)->Forward(*step, 0, x, y));
      REQUIRE(cudaStreamEndCapture(rows.stream(), &made) == cudaSuccess);
      REQUIRE(cudaGraphInstantiate(graph, made, 0) == cudaSuccess);
      cudaGraphDestroy(made);
    } else {
      rows.Set(HiddenProcess(shape.hidden, 1).Next(1));
      REQUIRE(cudaGraphLaunch(*graph, rows.stream()) == cudaSuccess);
      REQUIRE(cudaStreamSynchronize(rows.stream()) == cudaSuccess);
    }
    return (*engine)->EndStep(*step);
  };
  cudaGraphExec_t graph = nullptr;
  REQUIRE_OK(run(true, &graph));
  REQUIRE_OK(run(false, &graph));
  const std::vector<float> right = rows.Get();
  source->set_broken(true);
  const absl::Status failed = run(false, &graph);
  CHECK(failed.code() == absl::StatusCode::kDataLoss);
  CHECK(std::isnan(rows.Get()[0]));
  source->set_broken(false);
  REQUIRE_OK(run(false, &graph));
  CHECK(SameBits(rows.Get(), right));
  cudaGraphExecDestroy(graph);
}

TEST_CASE("without a CPU, and for calls of many rows, the refusal says what to do") {
  Chain exact("on-demand", 0.5, Shape(), 1, 1 << 20);
  const std::string obstacle = exact.engine()->graph_needs().obstacle;
  CHECK_THAT(obstacle, Catch::Contains("host_budget") && Catch::Contains("faithful"));
  constexpr int64_t kMany = 40;
  Partly partly("on-demand:cpu=1", 0.5, 0.5, Shape(), kMany);
  const StepId step = partly->Begin(kMany);
  const DeviceRowsBuffer rows(static_cast<size_t>(kMany * Shape().hidden));
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamBeginCapture(partly->stream(), cudaStreamCaptureModeGlobal) == cudaSuccess);
  const int64_t hidden = Shape().hidden;
  const absl::Status refused =
      partly->engine()->Forward(step, 0, {rows.x(), DType::kF32, kMany, hidden, hidden},
                                {rows.y(), DType::kF32, kMany, hidden, hidden});
  REQUIRE(cudaStreamEndCapture(partly->stream(), &graph) == cudaSuccess);
  cudaGraphDestroy(graph);
  CHECK(refused.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(refused.message()), Catch::Contains("host_budget"));
  CHECK(partly->engine()->EndStep(step) == refused);  // the step's, too
}

TEST_CASE("a few steps with records beside pinned memory, for the tools that watch every access") {
  Partly partly("fate:cpu=1", 0.3, 0.4);
  const SyntheticShape shape = WideShape();
  partly->Capture(2);
  RecurringRows next(shape.hidden, 4);
  std::mt19937 rng(1);
  for (int s = 0; s < 12; ++s) partly->Step(LayersOf(shape, 2, &next, &rng), 2, true);
  CHECK(partly.Checked().cpu_below > 0);
}

}  // namespace
}  // namespace moert::test
