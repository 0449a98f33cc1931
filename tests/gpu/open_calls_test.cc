// Calls whose misses are served while the device waits, and the caller does not.
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "device_step.h"
#include "tests/support/catch.h"
#include "tests/support/run_engine.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {
namespace {

constexpr int64_t kRows = 4;

SyntheticShape Shape() {
  SyntheticShape shape;
  shape.layers = 3;
  shape.experts = 16;
  shape.top_k = 2;
  shape.hidden = 128;
  shape.intermediate = 80;
  shape.shared_intermediate = 48;
  return shape;
}

EngineOptions Options(const std::string& strategy, double share) {
  setenv("MOERT_CUDA_MISSES", "wait", 1);
  EngineOptions o;
  o.backend = BackendKind::kCuda;
  o.strategy = strategy;
  o.budget = Budget::Fraction(share);
  o.max_tokens_per_forward = kRows;
  return o;
}

StepInfo Decode(const DeviceRowsBuffer& device) {
  StepInfo info;
  info.phase = Phase::kDecode;
  info.rows = kRows;
  info.stream = device.stream();
  return info;
}

/// All layers, one behind the other in place, without a look at the device in between.
absl::Status ForwardAll(Engine* engine, StepId step, const DeviceRowsBuffer& device) {
  const int64_t hidden = Shape().hidden;
  const float* from = device.x();
  for (int l = 0; l < engine->model().num_layers(); ++l) {
    const absl::Status status = engine->Forward(step, l, {from, DType::kF32, kRows, hidden, hidden},
                                                {device.y(), DType::kF32, kRows, hidden, hidden});
    if (!status.ok()) return status;
    from = device.y();
  }
  return absl::OkStatus();
}

/// The outputs of the last layer over steps of seeded inputs.
std::vector<float> Drive(Engine* engine, int steps, uint64_t seed = 7) {
  HiddenProcess process(Shape().hidden, seed);
  DeviceRowsBuffer device(kRows * Shape().hidden);
  std::vector<float> outputs;
  for (int s = 0; s < steps; ++s) {
    auto step = engine->BeginStep(Decode(device));
    REQUIRE_OK(step.status());
    device.Set(process.Next(kRows));
    REQUIRE_OK(ForwardAll(engine, *step, device));
    REQUIRE_OK(engine->EndStep(*step));
    const std::vector<float> y = device.Get();
    outputs.insert(outputs.end(), y.begin(), y.end());
  }
  return outputs;
}

std::vector<float> Resident(const std::shared_ptr<SyntheticSource>& source, int steps,
                            uint64_t seed = 7) {
  auto engine = Engine::Create(source, Options("resident", 1));
  REQUIRE_OK(engine.status());
  return Drive(engine->get(), steps, seed);
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_CASE("the same bits, and the caller never waits") {
  constexpr int kSteps = 12;
  const auto source = std::make_shared<SyntheticSource>(Shape());
  const std::vector<float> expected = Resident(source, kSteps);
  for (const char* strategy : {"on-demand", "activation-path", "fate", "load-on-demand"}) {
    for (const double share : {1.0, 0.5, 0.25}) {
      INFO(strategy << " at " << share);
      auto engine = Engine::Create(source, Options(strategy, share));
      REQUIRE_OK(engine.status());
      CHECK(SameBits(Drive(engine->get(), kSteps), expected));
      const EngineStats stats = (*engine)->stats();
      CHECK(stats.loads + stats.prefetch_useful > 0);
      CHECK(stats.lookups > 0);
      CHECK(stats.host_syncs == 0);
      CHECK(stats.peak_bytes <= stats.budget_bytes);
    }
  }
}

TEST_CASE("the expert-cache rule decides as in calls that the host waits for") {
  constexpr int kSteps = 40;
  SyntheticShape shape = Shape();
  shape.gate_scale = 0.3f;  // scores that are close: much can be replaced
  const auto source = std::make_shared<SyntheticSource>(shape);
  // No prefetch and no CPU: who is resident does not depend on the time things take.
  for (const char* keys : {"alpha=0.6", "alpha=0.6,second_pass=1", "alpha=0.5,max_slots=0.05",
                           "alpha=0.5,substitute=skip", "alpha=0"}) {
    for (const double share : {0.75, 0.5}) {
      const std::string strategy = std::string("on-demand+importance.routing:") + keys;
      INFO(strategy << " at " << share);
      EngineStats stats[2];
      std::vector<float> outputs[2];
      for (const bool wait : {false, true}) {
        EngineOptions options = Options(strategy, share);
        setenv("MOERT_CUDA_MISSES", wait ? "wait" : "split", 1);
        auto engine = Engine::Create(source, options);
        REQUIRE_OK(engine.status());
        outputs[wait] = Drive(engine->get(), kSteps);
        stats[wait] = (*engine)->stats();
      }
      CHECK(SameBits(outputs[1], outputs[0]));
      CHECK(stats[0].host_syncs == kSteps * shape.layers);
      CHECK(stats[1].host_syncs == 0);
      CHECK(stats[1].lookups == stats[0].lookups);
      CHECK(stats[1].loads == stats[0].loads);
      CHECK(stats[1].evictions == stats[0].evictions);
      CHECK(stats[1].slots_substituted == stats[0].slots_substituted);
      CHECK(stats[1].model_lookups == stats[0].model_lookups);
      CHECK(stats[1].model_hits == stats[0].model_hits);
      CHECK(stats[1].mass_substituted == Approx(stats[0].mass_substituted));
      CHECK(stats[1].worst_slot_share == stats[0].worst_slot_share);
      CHECK(stats[1].worst_mass_share == stats[0].worst_mass_share);
      if (std::string(keys) == "alpha=0") {
        CHECK(stats[1].slots_substituted == 0);
      } else {
        CHECK(stats[1].slots_substituted > 0);
      }
    }
  }
}

TEST_CASE("importance whole: prefetch, average score, the CPU, caps; requests that come and go") {
  constexpr int kSteps = 60;
  SyntheticShape shape = Shape();
  shape.gate_scale = 0.3f;
  const auto source = std::make_shared<SyntheticSource>(shape);
  for (const char* keys :
       {"alpha=0.6,max_slots=0.1,balancer=0", "alpha=0.3,balancer=1", "alpha=0.3"}) {
    INFO(keys);
    EngineOptions options = Options(std::string("importance:") + keys, 0.5);
    if (std::string(keys).find("balancer=0") == std::string::npos) options.link_gbps = 0.1;
    auto engine = Engine::Create(source, options);
    REQUIRE_OK(engine.status());
    DeviceRowsBuffer device(kRows * shape.hidden);
    HiddenProcess process(shape.hidden, 17);
    for (int s = 0; s < kSteps; ++s) {
      const std::vector<int64_t> requests = {s / 7, 100 + s / 5, 100 + s / 5, 1000 + s};
      StepInfo info = Decode(device);
      info.request_ids = requests;
      auto step = (*engine)->BeginStep(info);
      REQUIRE_OK(step.status());
      device.Set(process.Next(kRows));
      REQUIRE_OK(ForwardAll(engine->get(), *step, device));
      REQUIRE_OK((*engine)->EndStep(*step));
      for (const float v : device.Get()) REQUIRE(std::isfinite(v));
    }
    const EngineStats stats = (*engine)->stats();
    CHECK(stats.host_syncs == 0);
    CHECK(stats.slots == int64_t{kSteps} * shape.layers * kRows * shape.top_k);
    CHECK(stats.slots_substituted > 0);
    CHECK(stats.peak_bytes <= stats.budget_bytes);
    if (std::string(keys).find("max_slots") != std::string::npos) {
      CHECK(stats.worst_slot_share <= 0.1);
    } else {
      CHECK(stats.cpu_computed > 0);
    }
  }
}

TEST_CASE("experts of the CPU join an open call") {
  constexpr int kSteps = 12;
  const auto source = std::make_shared<SyntheticSource>(Shape());
  const std::vector<float> reference = Resident(source, kSteps);
  for (const char* strategy : {"cpu-split", "hybrimoe-like:balancer=1"}) {
    INFO(strategy);
    EngineOptions options = Options(strategy, 0.3);
    if (std::string(strategy) != "cpu-split") options.link_gbps = 0.1;
    auto engine = Engine::Create(source, options);
    REQUIRE_OK(engine.status());
    CHECK(RelativeError(Drive(engine->get(), kSteps), {reference.begin(), reference.end()}) < 5e-3);
    CHECK((*engine)->stats().cpu_computed > 5);
    CHECK((*engine)->stats().host_syncs == 0);
  }
}

TEST_CASE("a step returns before its transfers do") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  EngineOptions options = Options("on-demand", 0.3);
  options.link_gbps = 0.002;  // 60 KiB: 30 ms
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  DeviceRowsBuffer device(kRows * Shape().hidden);
  HiddenProcess process(Shape().hidden, 3);
  device.Set(process.Next(kRows));
  auto step = (*engine)->BeginStep(Decode(device));
  REQUIRE_OK(step.status());
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE_OK(ForwardAll(engine->get(), *step, device));
  const double forward_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  REQUIRE_OK((*engine)->EndStep(*step));
  REQUIRE(cudaStreamSynchronize(device.stream()) == cudaSuccess);
  const double all_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  INFO("forward " << forward_ms << " ms, all " << all_ms << " ms");
  CHECK((*engine)->stats().loads >= 3);
  CHECK(all_ms > 80);
  CHECK(forward_ms < all_ms / 4);
}

TEST_CASE("a failed read arrives late, as the step's error, and the engine goes on") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  EngineOptions options = Options("on-demand", 0.3);
  options.host_budget = 0;
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  Drive(engine->get(), 2);
  source->set_broken(true);
  DeviceRowsBuffer device(kRows * Shape().hidden);
  HiddenProcess other(Shape().hidden, 99);
  absl::Status status;
  for (int s = 0; s < 6 && status.ok(); ++s) {
    auto step = (*engine)->BeginStep(Decode(device));
    REQUIRE_OK(step.status());
    device.Set(other.Next(kRows));
    REQUIRE_OK(ForwardAll(engine->get(), *step, device));            // nothing is known yet
    REQUIRE(cudaStreamSynchronize(device.stream()) == cudaSuccess);  // and nothing hangs
    status = (*engine)->StepStatus(*step);
    CHECK((*engine)->EndStep(*step) == status);
  }
  CHECK(status.code() == absl::StatusCode::kDataLoss);
  source->set_broken(false);
  CHECK(SameBits(Drive(engine->get(), 4), Resident(source, 4)));
}

TEST_CASE("cancelled and abandoned steps release the stream") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  EngineOptions options = Options("on-demand", 0.3);
  options.link_gbps = 0.002;
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  DeviceRowsBuffer device(kRows * Shape().hidden);
  HiddenProcess process(Shape().hidden, 3);
  for (int i = 0; i < 3; ++i) {
    device.Set(process.Next(kRows));
    auto step = (*engine)->BeginStep(Decode(device));
    REQUIRE_OK(step.status());
    REQUIRE_OK(ForwardAll(engine->get(), *step, device));
    REQUIRE_OK((*engine)->CancelStep(*step));
    CHECK(absl::IsCancelled((*engine)->EndStep(*step)));
    REQUIRE(cudaStreamSynchronize(device.stream()) == cudaSuccess);
  }
  // Destroyed while the device waits in the middle of a step.
  device.Set(process.Next(kRows));
  auto step = (*engine)->BeginStep(Decode(device));
  REQUIRE_OK(step.status());
  REQUIRE_OK(ForwardAll(engine->get(), *step, device));
  engine->reset();
  REQUIRE(cudaStreamSynchronize(device.stream()) == cudaSuccess);
}

TEST_CASE("layers that may miss are captured once and replayed") {
  constexpr int kReplays = 20;
  const auto source = std::make_shared<SyntheticSource>(Shape());
  const std::vector<float> expected = Resident(source, kReplays, 21);
  for (const char* strategy : {"on-demand", "fate", "activation-path"}) {
    INFO(strategy);
    auto engine = Engine::Create(source, Options(strategy, 0.25));
    REQUIRE_OK(engine.status());
    DeviceRowsBuffer device(kRows * Shape().hidden);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    auto first = (*engine)->BeginStep(Decode(device));
    REQUIRE_OK(first.status());
    REQUIRE(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeThreadLocal) ==
            cudaSuccess);
    REQUIRE_OK(ForwardAll(engine->get(), *first, device));
    REQUIRE(cudaStreamEndCapture(device.stream(), &graph) == cudaSuccess);
    REQUIRE_OK((*engine)->EndStep(*first));
    REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
    HiddenProcess process(Shape().hidden, 21);
    std::vector<float> outputs;
    for (int i = 0; i < kReplays; ++i) {
      auto step = (*engine)->BeginStep(Decode(device));
      REQUIRE_OK(step.status());
      device.Set(process.Next(kRows));
      REQUIRE(cudaGraphLaunch(executable, device.stream()) == cudaSuccess);
      if (i % 3 == 1) REQUIRE_OK((*engine)->ResidencyOf(1).status());  // in the middle of it
      REQUIRE_OK((*engine)->EndStep(*step));
      const std::vector<float> y = device.Get();
      outputs.insert(outputs.end(), y.begin(), y.end());
      if (i % 5 == 4) {
        REQUIRE_OK((*engine)->SetBudget(Budget::Fraction(i % 2 == 0 ? 0.25 : 0.6)));
      }
    }
    CHECK(SameBits(outputs, expected));
    CHECK((*engine)->stats().graph_captured);
    CHECK((*engine)->stats().host_syncs == 0);
    CHECK((*engine)->stats().loads > kReplays);
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  }
}

TEST_CASE("other calls between open ones: leases, hints, budgets, steps side by side") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  const std::vector<float> expected = Resident(source, 12);
  auto engine = Engine::Create(source, Options("on-demand", 0.4));
  REQUIRE_OK(engine.status());
  HiddenProcess process(Shape().hidden, 7);
  DeviceRowsBuffer device(kRows * Shape().hidden);
  std::vector<float> outputs;
  for (int s = 0; s < 12; ++s) {
    auto step = (*engine)->BeginStep(Decode(device));
    REQUIRE_OK(step.status());
    device.Set(process.Next(kRows));
    const int64_t hidden = Shape().hidden;
    const float* from = device.x();
    for (int l = 0; l < 3; ++l) {
      if (s % 3 == 0) REQUIRE_OK((*engine)->PrefetchHint((l + 1) % 3, {0, 1, 2}));
      if (s % 4 == 1) {
        std::vector<ExpertView> views;
        auto lease = (*engine)->AcquireExperts(*step, (l + 2) % 3, {3, 4}, &views);
        REQUIRE_OK(lease.status());
        if (l == 1) REQUIRE_OK((*engine)->ReleaseExperts(*lease));
      }
      if (s % 4 == 2) REQUIRE_OK((*engine)->SetBudget(Budget::Fraction(0.3 + 0.1 * l)));
      REQUIRE_OK((*engine)->Forward(*step, l, {from, DType::kF32, kRows, hidden, hidden},
                                    {device.y(), DType::kF32, kRows, hidden, hidden}));
      from = device.y();
    }
    REQUIRE_OK((*engine)->EndStep(*step));
    const std::vector<float> y = device.Get();
    outputs.insert(outputs.end(), y.begin(), y.end());
  }
  CHECK(SameBits(outputs, expected));
}

}  // namespace
}  // namespace moert::test
