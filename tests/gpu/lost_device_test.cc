// A kernel of the host faults: every call of CUDA fails from then on. The engine's calls are errors
// that say so, none hangs or ends the process, and the engine can be destroyed. A process of its
// own, as nothing on the device works behind it.
#include "absl/strings/match.h"
#include "device_step.h"
#include "tests/support/catch.h"
#include "tests/support/run_engine.h"
#include "tests/support/synthetic_source.h"
#include "trap_kernel.h"

namespace moert::test {
namespace {

constexpr int64_t kRows = 4;

std::unique_ptr<Engine> Open(const std::shared_ptr<SyntheticSource>& source,
                             const std::string& strategy) {
  EngineOptions options;
  options.backend = BackendKind::kCuda;
  options.strategy = strategy;
  options.budget = Budget::Fraction(0.5);
  options.max_tokens_per_forward = kRows;
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  return *std::move(engine);
}

absl::Status Step(Engine* engine, const DeviceRowsBuffer& device) {
  const int64_t hidden = engine->model().layers[0].hidden;
  StepInfo info;
  info.rows = kRows;
  info.stream = device.stream();
  const auto step = engine->BeginStep(info);
  if (!step.ok()) return step.status();
  absl::Status status;
  for (int l = 0; l < engine->model().num_layers() && status.ok(); ++l) {
    status = engine->Forward(*step, l, {device.x(), DType::kF32, kRows, hidden, hidden},
                             {device.y(), DType::kF32, kRows, hidden, hidden});
  }
  status.Update(engine->EndStep(*step));
  return status;
}

TEST_CASE("a device that is lost is an error of every call, and engines go") {
  SyntheticShape shape;
  shape.layers = 3;
  shape.experts = 16;
  shape.top_k = 4;
  shape.hidden = 192;
  shape.intermediate = 128;
  shape.low_version = true;
  const auto source = std::make_shared<SyntheticSource>(shape);
  DeviceRowsBuffer device(kRows * shape.hidden);
  device.Set(HiddenProcess(shape.hidden, 7).Next(kRows));
  std::vector<std::unique_ptr<Engine>> engines;
  for (const char* strategy :
       {"on-demand", "fate", "fate:cpu=1", "resident:scheme=low",
        "dynaexq:hi=bf16,lo=low,interval_ms=0.05,spare=2", "graded:lo=low,loss=0.1"}) {
    engines.push_back(Open(source, strategy));
    REQUIRE_OK(Step(engines.back().get(), device));
  }
  // Open steps when it happens.
  StepInfo info;
  info.rows = kRows;
  info.stream = device.stream();
  const auto open = engines[0]->BeginStep(info);
  REQUIRE_OK(open.status());

  REQUIRE(LaunchTrap(device.stream()) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(device.stream()) != cudaSuccess);
  for (const auto& engine : engines) {
    // The first call that asks the device hears of it; so does each one behind it.
    absl::Status status;
    for (int s = 0; s < 3 && status.ok(); ++s) status = Step(engine.get(), device);
    INFO(engine->strategy() << ": " << status);
    CHECK(!status.ok());
    CHECK(absl::StrContains(status.message(), "CUDA"));
    (void)engine->SetBudget(Budget::Fraction(0.3));
    (void)engine->stats();
  }
  (void)engines[0]->EndStep(*open);
  engines.clear();
  EngineOptions options;
  options.backend = BackendKind::kCuda;
  const auto late = Engine::Create(source, options);
  CHECK(!late.ok());
}

}  // namespace
}  // namespace moert::test
