// The assertions of tests/fault on the CPU, for the calls below the CUDA backend: fault_life.h.
// Engines whose misses the host brings; served_fault_test.cc has the others.
#include "device_step.h"
#include "fault_life.h"
#include "moert/parallel/peer_tier.h"
#include "tests/support/run_engine.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {
namespace {

constexpr int64_t kRows = 4;
constexpr int kSteps = 3;

SyntheticShape Shape() {
  SyntheticShape shape;
  shape.layers = 2;
  shape.experts = 8;
  shape.top_k = 2;
  shape.hidden = 128;
  shape.intermediate = 64;
  return shape;
}

EngineOptions Options(const std::string& strategy) {
  EngineOptions o;
  o.backend = BackendKind::kCuda;
  o.strategy = strategy;
  o.budget = Budget::Fraction(strategy == "resident" ? 1 : 0.4);
  o.max_tokens_per_forward = kRows;
  return o;
}

Outcome RunSteps(Engine* engine) {
  HiddenProcess process(Shape().hidden, 7);
  Outcome outcome;
  for (int s = 0; s < kSteps; ++s) {
    DeviceRowsBuffer device(kRows * Shape().hidden);
    device.Set(process.Next(kRows));
    outcome.status = InEngine([&] {
      return RunLayers(engine, s == 0 ? Phase::kPrefill : Phase::kDecode, kRows, device);
    });
    const std::vector<float> y = device.Get();
    if (!outcome.status.ok()) break;
    outcome.Add(y);
  }
  return outcome;
}

TEST_CASE("every CUDA call may fail: a status, the engine goes on, memory comes back") {
  for (const auto& [strategy, dense] :
       {std::pair<const char*, long>{"on-demand", 4}, {"resident", 2}, {"fate", 1}}) {
    const auto open = [strategy = strategy] {
      return Engine::Create(std::make_shared<SyntheticSource>(Shape()), Options(strategy));
    };
    SweepCudaFaults({strategy, open, RunSteps, dense});
  }
}

TEST_CASE("so may those of an engine that brings what it misses from another's pool") {
  const auto peers = MakePeerTier();
  const auto source = std::make_shared<SyntheticSource>(Shape());
  const auto open = [&] {
    EngineOptions options = Options("on-demand");
    options.peers = peers;
    return Engine::Create(source, options);
  };
  const auto other = open();
  REQUIRE_OK(other.status());
  {
    const TestsOwnCalls own;
    REQUIRE_OK(RunSteps(other->get()).status);
  }
  const int64_t copies = StatsOf(*peers).copies;
  SweepCudaFaults({"peers", open, RunSteps, 1});
  CHECK(StatsOf(*peers).copies > copies);
}

}  // namespace
}  // namespace moert::test
