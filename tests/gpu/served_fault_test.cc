// Faults below an engine whose misses and prefetches the device serves, captured and replayed, and
// below calls whose product is the host's (Fetch, CopyLayer): fault_life.h.
#include "device_step.h"
#include "exec/backend.h"
#include "fault_life.h"
#include "opaque_device.h"
#include "recorded_graph.h"
#include "tests/support/run_engine.h"
#include "tests/support/slow_link.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {
namespace {

constexpr int64_t kRows = 3;
constexpr int kSteps = 3;
constexpr int kMostSteps = 5000;  // until something has happened that depends on time and load

SyntheticShape Shape() {
  SyntheticShape shape;
  shape.layers = 3;
  shape.experts = 16;
  shape.top_k = 2;
  shape.hidden = 128;
  shape.intermediate = 64;
  return shape;
}

/// A step that a host records once and launches every time.
class RecordedStep {
 public:
  RecordedStep(Engine* engine, int layers)
      : engine_(engine), layers_(layers), device_(static_cast<size_t>(kRows * Shape().hidden)) {}
  ~RecordedStep() { cudaStreamSynchronize(stream()); }
  RecordedStep(const RecordedStep&) = delete;
  RecordedStep& operator=(const RecordedStep&) = delete;

  absl::Status Record() {
    const auto step = Begin();
    if (!step.ok()) return step.status();
    absl::Status status =
        graph_.Record(stream(), cudaStreamCaptureModeGlobal, [&] { return Forward(*step); });
    status.Update(End(*step));
    return status;
  }
  /// Replayed, where Record was called and succeeded.
  absl::Status Run(const std::vector<float>& x, std::vector<float>* y) {
    const auto step = Begin();
    if (!step.ok()) return step.status();
    device_.Set(x);
    absl::Status status;
    if (graph_.recorded()) {
      graph_.Launch(stream());
    } else {
      status = Forward(*step);
    }
    *y = device_.Get();
    status.Update(End(*step));
    return status;
  }

 private:
  cudaStream_t stream() const { return device_.stream(); }
  absl::StatusOr<StepId> Begin() {
    StepInfo info;
    info.phase = Phase::kDecode;
    info.rows = kRows;
    info.stream = stream();
    return InEngine([&] { return engine_->BeginStep(info); });
  }
  absl::Status End(StepId step) {
    return InEngine([&] { return engine_->EndStep(step); });
  }
  /// A layer's output is the next one's input, in place.
  absl::Status Forward(StepId step) {
    const int64_t hidden = Shape().hidden;
    const float* from = device_.x();
    absl::Status status;
    for (int l = 0; l < layers_ && status.ok(); ++l) {
      status = InEngine([&] {
        return engine_->Forward(step, l, {from, DType::kF32, kRows, hidden, hidden},
                                {device_.y(), DType::kF32, kRows, hidden, hidden});
      });
      from = device_.y();
    }
    return status;
  }

  Engine* const engine_;
  const int layers_;
  DeviceRowsBuffer device_;
  RecordedGraph graph_;
};

/// Some steps run eagerly, then steps are replayed. An engine that a fault left without served
/// misses says so, and runs all of them eagerly.
Outcome Replay(Engine* engine, int layers, int eager = 1) {
  HiddenProcess process(Shape().hidden, 7);
  RecordedStep step(engine, layers);
  Outcome outcome;
  for (int s = 0; s < kSteps && outcome.status.ok(); ++s) {
    if (s == eager && engine->graph_needs().capturable) outcome.status = step.Record();
    std::vector<float> y;
    if (outcome.status.ok()) outcome.status = step.Run(process.Next(kRows), &y);
    if (outcome.status.ok()) outcome.Add(y);
  }
  return outcome;
}

/// By default all of its records are in pinned memory.
absl::StatusOr<std::unique_ptr<Engine>> OpenServed(const char* strategy,
                                                   const SyntheticShape& shape, double fraction,
                                                   const HardwareProfile& profile = {},
                                                   int64_t host_budget = int64_t{64} << 20) {
  EngineOptions o;
  o.backend = BackendKind::kCuda;
  o.strategy = strategy;
  o.budget = Budget::Fraction(fraction);
  o.max_tokens_per_forward = kRows;
  o.host_budget = host_budget;
  o.profile = profile;
  return Engine::Create(std::make_shared<SyntheticSource>(shape), o);
}

TEST_CASE("faults of captured steps whose misses the device serves, and prefetches") {
  // So little may be lost that nothing is: accounts and rules are asked, and the bits stay.
  const std::pair<const char*, bool> cells[] = {
      {"on-demand", false}, {"fate", false}, {"graded:lo=low,cpu=0,loss=1e-9", true}};
  for (const auto& [strategy, two_versions] : cells) {
    const auto open = [strategy = strategy, two_versions = two_versions] {
      SyntheticShape shape = Shape();
      shape.low_version = two_versions;
      return OpenServed(strategy, shape, 0.4);
    };
    {
      const auto engine = open();
      REQUIRE_OK(engine.status());
      REQUIRE((*engine)->graph_needs().capturable);
    }
    const auto drive = [](Engine* engine) { return Replay(engine, Shape().layers); };
    FaultedLife life{std::string("served ") + strategy, open, drive, 1};
    life.warm = 4;
    SweepCudaFaults(life);
  }
}

TEST_CASE("faults of captured steps while records come into pinned memory and leave it") {
  const auto open = [] {
    SyntheticShape shape = Shape();
    shape.layers = 1;  // others would route what the CPU rounds
    const int64_t all = UnpinnedBytes(SyntheticSource(shape), {0});
    return OpenServed("on-demand:cpu=1", shape, 0.2, {}, 2 * all / 3);
  };
  {
    const auto engine = open();
    REQUIRE_OK(engine.status());
    REQUIRE((*engine)->graph_needs().capturable);
    REQUIRE_OK(Replay(engine->get(), 1).status);
    CHECK((*engine)->stats().cpu_below > 0);
  }
  const auto drive = [](Engine* engine) { return Replay(engine, 1); };
  FaultedLife life{"beside pinned memory", open, drive, 1};
  life.warm = 4;
  life.tolerance = 1e-4;
  SweepCudaFaults(life);
}

TEST_CASE("faults of captured steps whose misses device and CPU share") {
  const char* const cells[] = {"importance:alpha=0", "graded:lo=low,alpha=0,loss=1e-9"};
  for (const char* const strategy : cells) {
    const auto open = [strategy] {
      SyntheticShape shape = Shape();
      shape.layers = 1;  // others would route what the CPU rounds
      shape.low_version = true;
      return OpenServed(strategy, shape, 0.25, SlowLink());
    };
    {
      const auto engine = open();
      REQUIRE_OK(engine.status());
      REQUIRE((*engine)->graph_needs().capturable);
      for (int s = 0; s < 2; ++s) REQUIRE_OK(Replay(engine->get(), 1).status);
      const auto computed = [&] { return (*engine)->stats().cpu_computed; };
      const int64_t before = computed();
      for (int s = 0; s < kMostSteps && computed() == before; ++s) {
        REQUIRE_OK(Replay(engine->get(), 1, /*eager=*/0).status);  // all replayed
      }
      CHECK(computed() > before);
    }
    const auto drive = [](Engine* engine) { return Replay(engine, 1); };
    FaultedLife life{std::string("shared with a CPU ") + strategy, open, drive, 1};
    life.warm = 4;
    life.tolerance = 1e-4;
    SweepCudaFaults(life);
  }
}

/// Layer calls of a host with a kernel of its own.
class FetchingHost {
 public:
  FetchingHost(Engine* engine, Place place)
      : engine_(engine), place_(place), ids_(kK), slots_(kK), out_(kK), every_(Every()), all_(kE) {
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);  // the arrays were filled on another stream
  }

  Outcome Steps(bool copies) {
    std::mt19937 random(3);
    for (int s = 0; s < kSteps && outcome_.status.ok(); ++s) {
      const auto step = InEngine([&] { return Begin(engine_, 1, stream_); });
      outcome_.status = step.status();
      for (int l = 0; l < kLayers && outcome_.status.ok(); ++l) {
        outcome_.status = Fetch(*step, l, RandomIds(&random, 1));
        if (copies && outcome_.status.ok()) outcome_.status = Copy(*step, l);
      }
      if (step.ok()) {
        outcome_.status.Update(InEngine([&] { return engine_->EndStep(*step); }));
      }
    }
    stream_.Wait();
    return std::move(outcome_);
  }

 private:
  static std::vector<int32_t> Every() {
    std::vector<int32_t> every(kE);
    for (int e = 0; e < kE; ++e) every[e] = e;
    return every;
  }
  absl::Status Fetch(StepId step, int layer, const std::vector<int32_t>& ids) {
    SlotView view;
    const absl::Status status =
        FetchAndMultiply(engine_, step, layer, place_, ids, {ids_.get(), slots_.get(), out_.get()},
                         stream_.get(), &view, [](const auto& call) { return InEngine(call); });
    stream_.Wait();
    if (status.ok()) outcome_.Add(out_.Get());
    return status;
  }
  absl::Status Copy(StepId step, int layer) {
    SlotView view;
    REQUIRE_OK(engine_->CopyLayer(step, layer, {}, nullptr, &view));
    const DeviceArray<std::byte> to(static_cast<size_t>(view.slots * view.parts[0].stride));
    stream_.Wait();
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);  // the array was filled on another stream
    const absl::Status status =
        InEngine([&] { return engine_->CopyLayer(step, layer, {}, to.get(), &view); });
    if (status.ok()) {
      REQUIRE(LaunchToy(WeightsOf(view), every_.get(), kE, kX, all_.get(), stream_.get()) ==
              cudaSuccess);
    }
    stream_.Wait();  // what a failed call enqueued writes here too
    if (status.ok()) outcome_.Add(all_.Get());
    return status;
  }

  Engine* const engine_;
  const Place place_;
  const Stream stream_;
  const DeviceArray<int32_t> ids_, slots_;
  const DeviceArray<double> out_;
  const DeviceArray<int32_t> every_;
  const DeviceArray<double> all_;
  Outcome outcome_;
};

/// Opaque experts, half of them on the device; `host_budget`: whether misses are served.
FaultedLife Fetches(const OpaqueModel& model, const char* name, Place place, int64_t host_budget,
                    bool copies) {
  const auto open = [&model, host_budget] {
    return Engine::Create(Source(model, model.InMemory()),
                          OpaqueOptions("on-demand", 0.5, host_budget));
  };
  const auto drive = [place, copies](Engine* engine) {
    return FetchingHost(engine, place).Steps(copies);
  };
  FaultedLife life{name, open, drive, 1};
  // Without every record in pinned memory there is nothing to copy from.
  life.open_armed = !copies;
  life.warm = 4;
  return life;
}

constexpr int64_t kSomeRecords = 1 << 18;

TEST_CASE("faults of fetches") {
  const OpaqueModel model;
  SweepCudaFaults(Fetches(model, "fetch, ids of the host", Place::kHost, kSomeRecords, false));
  SweepCudaFaults(Fetches(model, "fetch, ids on the device", Place::kDevice, kSomeRecords, false));
  SweepCudaFaults(Fetches(model, "fetch served", Place::kDevice, kAllRecords, false));
}

TEST_CASE("faults of fetches that the device serves, and of copies of layers") {
  const OpaqueModel model;
  SweepCudaFaults(Fetches(model, "fetch served, copies", Place::kDevice, kAllRecords, true));
}

}  // namespace
}  // namespace moert::test
