// The engine on a device: parity with the CPU, bit-identity over budgets, faults, live budgets, and
// whole layers under graph capture (which forbids every call that would wait for the device).
#include <cstring>

#include "device_step.h"
#include "other_capture.h"
#include "tests/support/catch.h"
#include "tests/support/run_engine.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {
namespace {

constexpr int64_t kRows = 12;
constexpr int kSteps = 6;

SyntheticShape Shape() {
  SyntheticShape shape;
  shape.layers = 3;
  shape.experts = 16;
  shape.top_k = 4;
  shape.hidden = 192;
  shape.intermediate = 176;  // not whole pieces of 64
  shape.shared_intermediate = 80;
  return shape;
}

EngineOptions Options(const std::string& strategy, Budget budget) {
  EngineOptions o;
  o.backend = BackendKind::kCuda;
  o.strategy = strategy;
  o.budget = budget;
  o.max_tokens_per_forward = kRows;
  return o;
}

std::vector<float> Drive(Engine* engine, int steps = kSteps) {
  HiddenProcess process(Shape().hidden, 7);
  DeviceRowsBuffer device(kRows * Shape().hidden);
  std::vector<float> outputs;
  for (int s = 0; s < steps; ++s) {
    REQUIRE_OK(RunDeviceStep(engine, s == 0 ? Phase::kPrefill : Phase::kDecode, process.Next(kRows),
                             kRows, &device, &outputs));
  }
  return outputs;
}

TEST_CASE("outputs agree with the CPU and are the same bits at every budget") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  EngineOptions cpu_options = Options("on-demand", Budget::Fraction(1));
  cpu_options.backend = BackendKind::kCpu;
  auto cpu = Engine::Create(source, cpu_options);
  REQUIRE_OK(cpu.status());
  HiddenProcess process(Shape().hidden, 7);
  std::vector<float> expected;
  for (int s = 0; s < kSteps; ++s) {
    REQUIRE_OK(RunStep(cpu->get(), s == 0 ? Phase::kPrefill : Phase::kDecode, process.Next(kRows),
                       kRows, &expected));
  }
  const std::vector<double> reference(expected.begin(), expected.end());

  std::vector<float> first;
  struct Case {
    const char* strategy;
    double budget;
  };
  for (const Case& c : {Case{"resident", 1.0},
                        {"on-demand", 1.0},
                        {"on-demand", 0.5},
                        {"on-demand", 0.25},
                        {"on-demand", 0.06},
                        {"on-demand+fate.prefetch", 0.4}}) {
    auto engine = Engine::Create(source, Options(c.strategy, Budget::Fraction(c.budget)));
    REQUIRE_OK(engine.status());
    CHECK((*engine)->backend() == BackendKind::kCuda);
    const std::vector<float> outputs = Drive(engine->get());
    INFO(c.strategy << " at " << c.budget);
    CHECK(RelativeError(outputs, reference) < 5e-3);
    if (first.empty()) first = outputs;
    CHECK(std::memcmp(first.data(), outputs.data(), first.size() * sizeof(float)) == 0);
    const EngineStats stats = (*engine)->stats();
    CHECK(stats.peak_bytes <= stats.budget_bytes);
    if (std::string(c.strategy) == "resident") CHECK(stats.host_syncs == 0);
  }
}

TEST_CASE("a failed read is an error of the step and the engine goes on") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  EngineOptions options = Options("on-demand", Budget::Fraction(0.3));
  options.host_budget = 0;  // every load reads the source
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  const std::vector<float> before = Drive(engine->get(), 1);
  source->set_broken(true);
  DeviceRowsBuffer device(kRows * Shape().hidden);
  std::vector<float> ignored;
  HiddenProcess other(Shape().hidden, 99);
  absl::Status status;
  for (int s = 0; s < 4 && status.ok(); ++s) {
    status =
        RunDeviceStep(engine->get(), Phase::kDecode, other.Next(kRows), kRows, &device, &ignored);
  }
  CHECK(status.code() == absl::StatusCode::kDataLoss);
  source->set_broken(false);
  const std::vector<float> after = Drive(engine->get(), 1);
  CHECK(std::memcmp(before.data(), after.data(), before.size() * sizeof(float)) == 0);
}

TEST_CASE("the budget changes live and memory comes back") {
  SyntheticShape shape = Shape();
  shape.experts = 64;
  shape.hidden = 1024;
  shape.intermediate = 1024;  // 6 MiB an expert, over 1 GiB in all
  const auto source = std::make_shared<SyntheticSource>(shape);
  auto engine = Engine::Create(source, Options("on-demand", Budget::Fraction(1)));
  REQUIRE_OK(engine.status());
  HiddenProcess process(shape.hidden, 3);
  DeviceRowsBuffer device(kRows * shape.hidden);
  std::vector<float> first, again;
  const std::vector<float> x = process.Next(kRows);
  for (int s = 0; s < 20; ++s) {
    REQUIRE_OK(
        RunDeviceStep(engine->get(), Phase::kDecode, process.Next(kRows), kRows, &device, &again));
  }
  REQUIRE_OK(RunDeviceStep(engine->get(), Phase::kDecode, x, kRows, &device, &first));
  size_t free_full = 0, free_shrunk = 0, total = 0;
  REQUIRE(cudaMemGetInfo(&free_full, &total) == cudaSuccess);
  const int64_t held = (*engine)->stats().pool_bytes;
  for (const double fraction : {0.5, 0.1, 0.7, 0.05}) {
    REQUIRE_OK((*engine)->SetBudget(Budget::Fraction(fraction)));
    again.clear();
    REQUIRE_OK(RunDeviceStep(engine->get(), Phase::kDecode, x, kRows, &device, &again));
    CHECK(std::memcmp(first.data(), again.data(), first.size() * sizeof(float)) == 0);
    CHECK((*engine)->stats().pool_bytes <= (*engine)->memory().pool_bytes());
  }
  REQUIRE(cudaMemGetInfo(&free_shrunk, &total) == cudaSuccess);
  const auto returned = static_cast<int64_t>(free_shrunk) - static_cast<int64_t>(free_full);
  INFO("held " << held << ", returned " << returned);
  CHECK(returned > held / 2);
}

TEST_CASE("a resident layer stack is captured once and replayed") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  auto engine = Engine::Create(source, Options("resident", Budget::Fraction(1)));
  REQUIRE_OK(engine.status());
  const int64_t hidden = Shape().hidden;
  DeviceRowsBuffer device(kRows * hidden);
  HiddenProcess process(hidden, 21);
  std::vector<std::vector<float>> inputs, expected;
  const auto forward = [&](StepId step) {
    // Layer after layer in place: the chain a host would capture.
    const float* from = device.x();
    for (int l = 0; l < (*engine)->model().num_layers(); ++l) {
      REQUIRE_OK((*engine)->Forward(step, l, {from, DType::kF32, kRows, hidden, hidden},
                                    {device.y(), DType::kF32, kRows, hidden, hidden}));
      from = device.y();
    }
  };
  StepInfo info;
  info.phase = Phase::kDecode;
  info.rows = kRows;
  info.stream = device.stream();
  for (int i = 0; i < 4; ++i) {
    inputs.push_back(process.Next(kRows));
    auto step = (*engine)->BeginStep(info);
    REQUIRE_OK(step.status());
    device.Set(inputs.back());
    forward(*step);
    expected.push_back(device.Get());
    REQUIRE_OK((*engine)->EndStep(*step));
  }
  CHECK((*engine)->stats().host_syncs == 0);

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  auto step = (*engine)->BeginStep(info);
  REQUIRE_OK(step.status());
  // Global mode: any call of this process that waits for the device would end the capture.
  REQUIRE(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeGlobal) == cudaSuccess);
  forward(*step);
  REQUIRE(cudaStreamEndCapture(device.stream(), &graph) == cudaSuccess);
  REQUIRE_OK((*engine)->EndStep(*step));
  REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
  for (size_t i = 0; i < inputs.size(); ++i) {
    auto replay = (*engine)->BeginStep(info);
    REQUIRE_OK(replay.status());
    device.Set(inputs[i]);
    REQUIRE(cudaGraphLaunch(executable, device.stream()) == cudaSuccess);
    const std::vector<float> outputs = device.Get();
    REQUIRE_OK((*engine)->EndStep(*replay));
    CHECK(std::memcmp(outputs.data(), expected[i].data(), outputs.size() * sizeof(float)) == 0);
  }
  CHECK((*engine)->stats().graph_captured);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

/// All layers, one behind the other.
struct LayerStack {
  Engine* engine;
  DeviceRowsBuffer* device;

  StepInfo Info() const {
    StepInfo info;
    info.phase = Phase::kDecode;
    info.rows = kRows;
    info.stream = device->stream();
    return info;
  }
  void Forward(StepId step) const {
    const int64_t hidden = engine->model().layers[0].hidden;
    const float* from = device->x();
    for (int l = 0; l < engine->model().num_layers(); ++l) {
      REQUIRE_OK(engine->Forward(step, l, {from, DType::kF32, kRows, hidden, hidden},
                                 {device->y(), DType::kF32, kRows, hidden, hidden}));
      from = device->y();
    }
  }
  cudaGraphExec_t Capture() const {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    auto step = engine->BeginStep(Info());
    REQUIRE_OK(step.status());
    REQUIRE(cudaStreamBeginCapture(device->stream(), cudaStreamCaptureModeGlobal) == cudaSuccess);
    Forward(*step);
    REQUIRE(cudaStreamEndCapture(device->stream(), &graph) == cudaSuccess);
    REQUIRE_OK(engine->EndStep(*step));
    REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
    cudaGraphDestroy(graph);
    return executable;
  }
  /// graph null: eagerly, or nothing with `idle`.
  void Step(cudaGraphExec_t graph, bool idle = false) const {
    auto step = engine->BeginStep(Info());
    REQUIRE_OK(step.status());
    if (graph != nullptr) {
      REQUIRE(cudaGraphLaunch(graph, device->stream()) == cudaSuccess);
    } else if (!idle) {
      Forward(*step);
    }
    REQUIRE_OK(engine->EndStep(*step));
  }
  /// Until everything late has come.
  EngineStats GrowArena() const {
    for (int i = 0; i < 3; ++i) {
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
      Step(nullptr, /*idle=*/true);
    }
    return engine->stats();
  }
};

TEST_CASE("replayed steps are counted as eager ones are, none twice and none forgotten") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  EngineStats stats[2];
  for (const bool replay : {false, true}) {
    auto engine = Engine::Create(source, Options("resident", Budget::Fraction(1)));
    REQUIRE_OK(engine.status());
    DeviceRowsBuffer device(kRows * Shape().hidden);
    const LayerStack layers{engine->get(), &device};
    cudaGraphExec_t graph = replay ? layers.Capture() : nullptr;
    HiddenProcess process(Shape().hidden, 31);
    for (int s = 0; s < 30; ++s) {
      device.Set(process.Next(kRows));
      // Nobody waits, so copies overtake one another's steps; now and then all of it arrives.
      layers.Step(graph);
      if (s % 7 == 0) REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
      if (!replay) REQUIRE(cudaDeviceSynchronize() == cudaSuccess);  // room for late routings
    }
    stats[replay] = layers.GrowArena();
    if (graph != nullptr) cudaGraphExecDestroy(graph);
  }
  CHECK(stats[1].slots == int64_t{30} * Shape().layers * kRows * Shape().top_k);
  CHECK(stats[1].slots == stats[0].slots);
  CHECK(stats[1].lookups == stats[0].lookups);
  CHECK(stats[1].hits_resident == stats[0].hits_resident);
  CHECK(stats[1].mass == Approx(stats[0].mass).epsilon(1e-6));
  CHECK(stats[1].host_syncs == 0);
}

TEST_CASE("hotness follows replayed steps alone") {
  SyntheticShape shape = Shape();
  shape.low_version = true;
  const auto source = std::make_shared<SyntheticSource>(shape);
  auto engine = Engine::Create(
      source, Options("dynaexq:hi=bf16,lo=low,interval_ms=0.001,margin=0,noise=0,hi_fraction=0.25",
                      Budget::Bytes(int64_t{64} << 20)));
  REQUIRE_OK(engine.status());
  DeviceRowsBuffer device(kRows * shape.hidden);
  const LayerStack layers{engine->get(), &device};
  cudaGraphExec_t graph = layers.Capture();
  HiddenProcess process(shape.hidden, 8);
  const std::vector<float> x = process.Next(kRows);  // the same experts over and over
  for (int s = 0; s < 60; ++s) {
    device.Set(x);
    layers.Step(graph);
    device.Get();
  }
  const EngineStats stats = layers.GrowArena();
  INFO("promotions " << stats.promotions << ", low answers " << stats.low_answers << " of "
                     << stats.lookups);
  CHECK(stats.promotions > 0);
  CHECK(stats.slots == int64_t{60} * shape.layers * kRows * shape.top_k);
  CHECK(stats.host_syncs == 0);
  CHECK(stats.peak_bytes <= stats.budget_bytes);
  cudaGraphExecDestroy(graph);
}

TEST_CASE("what may be captured, and what is refused") {
  SyntheticShape shape = Shape();
  shape.low_version = true;
  const auto source = std::make_shared<SyntheticSource>(shape);
  const auto needs = [&](const std::string& strategy) {
    auto engine = Engine::Create(source, Options(strategy, Budget::Fraction(1)));
    REQUIRE_OK(engine.status());
    return (*engine)->graph_needs();
  };
  const auto safe = [&](const std::string& strategy) {
    const GraphNeeds of = needs(strategy);
    CHECK(of.obstacle.empty() == of.capturable);
    return of.capturable;
  };
  CHECK(needs("resident").eager_every == 0);
  CHECK(needs("dynaexq:hi=bf16,lo=low").eager_every == 0);
  CHECK(needs("graded:wait=0,hi=bf16,lo=low").eager_every == 8);  // evicts by scores
  CHECK(safe("resident"));
  CHECK(safe("dynaexq:hi=bf16,lo=low"));
  CHECK(safe("graded:wait=0,hi=bf16,lo=low"));
  CHECK(!safe("graded:wait=0,hi=bf16,lo=low+fate.prefetch"));
  CHECK(safe("importance"));  // the CPU computes what is not pinned
  CHECK(!safe("fate"));

  auto engine = Engine::Create(source, Options("on-demand", Budget::Fraction(0.5)));
  REQUIRE_OK(engine.status());
  CHECK(!(*engine)->graph_needs().capturable);
  const int64_t hidden = shape.hidden;
  DeviceRowsBuffer device(kRows * hidden);
  HiddenProcess process(hidden, 3);
  device.Set(process.Next(kRows));
  StepInfo info;
  info.phase = Phase::kDecode;
  info.rows = kRows;
  info.stream = device.stream();
  auto step = (*engine)->BeginStep(info);
  REQUIRE_OK(step.status());
  const auto forward = [&] {
    return (*engine)->Forward(*step, 0, {device.x(), DType::kF32, kRows, hidden, hidden},
                              {device.y(), DType::kF32, kRows, hidden, hidden});
  };
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeGlobal) == cudaSuccess);
  const absl::Status refused = forward();
  // The capture is the host's: refusing leaves it as it was.
  REQUIRE(cudaStreamEndCapture(device.stream(), &graph) == cudaSuccess);
  cudaGraphDestroy(graph);
  CHECK(refused.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(refused.message()), Catch::Contains("captured"));
  REQUIRE_OK((*engine)->StepStatus(*step));  // no failure of the step
  REQUIRE_OK(forward());
  REQUIRE_OK((*engine)->EndStep(*step));
}

TEST_CASE("an engine comes, works and goes beside another thread's capture") {
  const SyntheticShape shape = Shape();
  const auto source = std::make_shared<SyntheticSource>(shape);
  const int64_t hidden = shape.hidden;
  DeviceRowsBuffer device(kRows * hidden);
  device.Set(HiddenProcess(hidden, 3).Next(kRows));
  (void)device.Get();
  const unsigned flags = GENERATE(cudaStreamNonBlocking, cudaStreamDefault);
  INFO("stream flags " << flags);
  OtherCapture capture(cudaStreamCaptureModeGlobal, flags);
  absl::Status status;
  {
    auto engine = Engine::Create(source, Options("on-demand", Budget::Fraction(0.5)));
    status = engine.status();
    StepInfo info;
    info.phase = Phase::kDecode;
    info.rows = kRows;
    info.stream = device.stream();
    for (int i = 0; i < 3 && status.ok(); ++i) {
      const auto step = (*engine)->BeginStep(info);
      status = step.status();
      for (int l = 0; l < shape.layers && status.ok(); ++l) {
        status = (*engine)->Forward(*step, l, {device.x(), DType::kF32, kRows, hidden, hidden},
                                    {device.y(), DType::kF32, kRows, hidden, hidden});
      }
      if (step.ok()) status.Update((*engine)->EndStep(*step));
    }
  }
  const cudaError_t left = cudaPeekAtLastError();
  const bool whole = capture.Whole();
  REQUIRE_OK(status);
  CHECK(left == cudaSuccess);
  CHECK(whole);
}

TEST_CASE("two versions: switches between steps reach captured layers") {
  SyntheticShape shape = Shape();
  shape.low_version = true;
  const auto source = std::make_shared<SyntheticSource>(shape);
  auto engine = Engine::Create(
      source, Options("dynaexq:hi=bf16,lo=low,interval_ms=0.001", Budget::Fraction(0.8)));
  REQUIRE_OK(engine.status());
  const int64_t hidden = shape.hidden;
  DeviceRowsBuffer device(kRows * hidden);
  HiddenProcess process(hidden, 5);
  StepInfo info;
  info.phase = Phase::kDecode;
  info.rows = kRows;
  info.stream = device.stream();
  const auto forward = [&](StepId step) {
    REQUIRE_OK((*engine)->Forward(step, 1, {device.x(), DType::kF32, kRows, hidden, hidden},
                                  {device.y(), DType::kF32, kRows, hidden, hidden}));
  };
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  auto first = (*engine)->BeginStep(info);
  REQUIRE_OK(first.status());
  REQUIRE(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeGlobal) == cudaSuccess);
  forward(*first);
  REQUIRE(cudaStreamEndCapture(device.stream(), &graph) == cudaSuccess);
  REQUIRE_OK((*engine)->EndStep(*first));
  REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
  // Within one step, replayed and eager see the same handles, whatever was promoted before it.
  for (int i = 0; i < 40; ++i) {
    const std::vector<float> x = process.Next(kRows);
    auto step = (*engine)->BeginStep(info);
    REQUIRE_OK(step.status());
    device.Set(x);
    REQUIRE(cudaGraphLaunch(executable, device.stream()) == cudaSuccess);
    const std::vector<float> replayed = device.Get();
    device.Set(x);
    forward(*step);
    const std::vector<float> eager = device.Get();
    REQUIRE_OK((*engine)->EndStep(*step));
    CHECK(std::memcmp(replayed.data(), eager.data(), eager.size() * sizeof(float)) == 0);
  }
  INFO("promotions " << (*engine)->stats().promotions);
  CHECK((*engine)->stats().host_syncs == 0);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

}  // namespace
}  // namespace moert::test
