// Misses of captured calls, served by the device: the bits of an engine that holds everything, the
// decisions of the host's path, no call of the driver that waits (driver_counter.cc is preloaded).
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <random>

#include "device_step.h"
#include "tests/support/catch.h"
#include "tests/support/run_engine.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {
namespace {

constexpr int64_t kMostRows = 8;

SyntheticShape Shape() {
  SyntheticShape shape;
  shape.layers = 3;
  shape.experts = 64;
  shape.top_k = 8;
  shape.hidden = 128;
  shape.intermediate = 96;
  return shape;
}

long long Calls(int kind) {
  using Count = long long (*)(int);
  static const auto count = reinterpret_cast<Count>(dlsym(RTLD_DEFAULT, "moert_driver_calls"));
  REQUIRE(count != nullptr);  // run with LD_PRELOAD=libmoert_driver_counter.so
  return count(kind);
}

EngineOptions Options(const std::string& strategy, double fraction) {
  EngineOptions o;
  o.backend = BackendKind::kCuda;
  o.strategy = strategy;
  o.budget = Budget::Fraction(fraction);
  o.max_tokens_per_forward = kMostRows;
  o.host_budget = int64_t{64} << 20;  // holds every record
  return o;
}

/// An engine, and steps through all of its layers in place, eager or replayed.
class Chain {
 public:
  Chain(const std::string& strategy, double fraction, int64_t host_budget = int64_t{64} << 20)
      : device_(static_cast<size_t>(kMostRows * Shape().hidden)) {
    EngineOptions options = Options(strategy, fraction);
    options.host_budget = host_budget;
    auto engine = Engine::Create(std::make_shared<SyntheticSource>(Shape()), options);
    REQUIRE_OK(engine.status());
    engine_ = std::move(*engine);
  }
  ~Chain() {
    cudaStreamSynchronize(device_.stream());
    for (auto& [rows, graph] : graphs_) cudaGraphExecDestroy(graph);
  }
  Engine* engine() { return engine_.get(); }
  cudaStream_t stream() const { return device_.stream(); }

  StepId Begin(int64_t rows) {
    StepInfo info;
    info.phase = Phase::kDecode;
    info.rows = rows;
    info.stream = device_.stream();
    auto step = engine_->BeginStep(info);
    REQUIRE_OK(step.status());
    return *step;
  }
  void Forward(StepId step, int64_t rows) {
    const int64_t hidden = Shape().hidden;
    const float* from = device_.x();
    for (int l = 0; l < Shape().layers; ++l) {
      REQUIRE_OK(engine_->Forward(step, l, {from, DType::kF32, rows, hidden, hidden},
                                  {device_.y(), DType::kF32, rows, hidden, hidden}));
      from = device_.y();
    }
  }
  void Capture(int64_t rows) {
    cudaGraph_t graph = nullptr;
    const StepId step = Begin(rows);
    REQUIRE(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeGlobal) == cudaSuccess);
    Forward(step, rows);
    REQUIRE(cudaStreamEndCapture(stream(), &graph) == cudaSuccess);
    REQUIRE_OK(engine_->EndStep(step));
    REQUIRE(cudaGraphInstantiate(&graphs_[rows], graph, 0) == cudaSuccess);
    cudaGraphDestroy(graph);
  }
  void Launch(int64_t rows) { REQUIRE(cudaGraphLaunch(graphs_.at(rows), stream()) == cudaSuccess); }
  void Set(std::vector<float> x) {
    x.resize(static_cast<size_t>(kMostRows * Shape().hidden));
    device_.Set(x);
  }
  std::vector<float> Get(int64_t rows) {
    std::vector<float> y = device_.Get();
    y.resize(static_cast<size_t>(rows * Shape().hidden));
    return y;
  }
  std::vector<float> Step(const std::vector<float>& x, int64_t rows, bool replay) {
    const StepId step = Begin(rows);
    Set(x);
    if (replay) {
      Launch(rows);
    } else {
      Forward(step, rows);
    }
    std::vector<float> y = Get(rows);
    REQUIRE_OK(engine_->EndStep(step));
    return y;
  }
  /// Behind steps that come to nothing, until everything late has come.
  EngineStats Stats() {
    for (int i = 0; i < 3; ++i) {
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
      REQUIRE_OK(engine_->EndStep(Begin(1)));
    }
    return engine_->stats();
  }

 private:
  DeviceRowsBuffer device_;
  std::unique_ptr<Engine> engine_;
  std::map<int64_t, cudaGraphExec_t> graphs_;
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_CASE("the bits of an engine that holds everything, at any budget and batch") {
  Chain all("resident", 1);
  for (const double fraction : {0.02, 0.25, 0.5, 0.9}) {
    INFO(fraction);
    Chain served("on-demand", fraction);
    REQUIRE(served.engine()->graph_safe());
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

TEST_CASE("no call waits, and a step is one graph launch") {
  for (const double fraction : {0.25, 0.5, 0.9}) {
    Chain served("on-demand", fraction);
    HiddenProcess process(Shape().hidden, 3);
    served.Capture(4);
    served.Step(process.Next(4), 4, true);  // takes the blocks
    const long long waits = Calls(0), launches = Calls(1), graphs = Calls(2);
    const int64_t host_syncs = served.engine()->stats().host_syncs;
    for (int s = 0; s < 30; ++s) {
      const StepId step = served.Begin(4);
      served.Launch(4);
      REQUIRE_OK(served.engine()->EndStep(step));
    }
    CHECK(Calls(0) == waits);
    CHECK(Calls(1) == launches);
    CHECK(Calls(2) == graphs + 30);
    CHECK(served.engine()->stats().host_syncs == host_syncs);
    CHECK(served.engine()->stats().graph_captured);
  }
}

TEST_CASE("eager and captured steps in turn decide as eager ones alone") {
  for (const double fraction : {0.3, 0.6}) {
    INFO(fraction);
    Chain eager("on-demand", fraction), turns("on-demand", fraction);
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
  int64_t wrong = 0;
  for (int s = 0; s < 150; ++s) {
    if (s % 5 == 4) {
      REQUIRE_OK(served.engine()->SetBudget(Budget::Fraction(0.05 + 0.9 * (rng() % 100) / 100)));
    }
    const std::vector<float> x = process.Next(3);
    const std::vector<float> expected = all.Step(x, 3, false);
    if (s % 7 != 3) {
      wrong += !SameBits(served.Step(x, 3, true), expected);
    } else {
      const StepId step = served.Begin(3);
      served.Set(x);
      served.Launch(3);
      wrong += !SameBits(served.Get(3), expected);
      // The host uses the blocks: replays of this step go on without them.
      std::vector<ExpertView> views;
      auto lease = served.engine()->AcquireExperts(step, 1, std::vector<int32_t>{5, 9}, &views);
      REQUIRE_OK(lease.status());
      served.Set(x);
      served.Launch(3);
      wrong += !SameBits(served.Get(3), expected);
      REQUIRE_OK(served.engine()->EndStep(step));
    }
    const EngineStats stats = served.engine()->stats();
    CHECK(stats.pool_bytes <= served.engine()->memory().pool_bytes());
  }
  CHECK(wrong == 0);
}

TEST_CASE("where the device cannot serve, a captured call says why") {
  Chain unknown("on-demand", 0.5, -1), small("on-demand", 0.5, 1 << 20);
  for (Chain* chain : {&unknown, &small}) {
    CHECK(!chain->engine()->graph_safe());
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

}  // namespace
}  // namespace moert::test
