// A kernel of the host faults: every CUDA call of the process fails from then on. The engines'
// calls are errors that say so, none hangs or ends the process, and engines can be destroyed. It is
// a program of its own, as nothing works on the device afterwards.
#include "absl/strings/match.h"
#include "device_step.h"
#include "tests/support/catch.h"
#include "tests/support/run_engine.h"
#include "tests/support/synthetic_source.h"
#include "trap_kernel.h"

namespace moert::test {
namespace {

constexpr int64_t kRows = 4;

const SyntheticShape kShape{
    .experts = 16, .top_k = 4, .hidden = 192, .intermediate = 128, .low_version = true};

absl::StatusOr<std::unique_ptr<Engine>> Open(const std::shared_ptr<SyntheticSource>& source,
                                             const std::string& strategy) {
  EngineOptions options;
  options.backend = BackendKind::kCuda;
  options.strategy = strategy;
  options.budget = Budget::Bytes(12 << 20);
  options.max_tokens_per_forward = kRows;
  return Engine::Create(source, options);
}

absl::Status Step(Engine* engine, const DeviceRowsBuffer& device) {
  return RunLayers(engine, Phase::kPrefill, kRows, device);
}

TEST_CASE("a device that is lost is an error of every call, and engines go") {
  const auto source = std::make_shared<SyntheticSource>(kShape);
  DeviceRowsBuffer device(kRows * kShape.hidden);
  device.Set(HiddenProcess(kShape.hidden, 7).Next(kRows));
  std::vector<std::unique_ptr<Engine>> engines;
  for (const char* strategy :
       {"on-demand", "fate", "fate:cpu=1", "resident:scheme=low",
        "dynaexq:hi=bf16,lo=low,interval_ms=0.05,spare=2", "graded:lo=low,loss=0.1"}) {
    INFO(strategy);
    auto engine = Open(source, strategy);
    REQUIRE_OK(engine.status());
    REQUIRE_OK(Step(engine->get(), device));
    engines.push_back(*std::move(engine));
  }
  // A step that is open when it happens.
  StepInfo info;
  info.rows = kRows;
  info.stream = device.stream();
  const auto open = engines[0]->BeginStep(info);
  REQUIRE_OK(open.status());

  REQUIRE(LaunchTrap(device.stream()) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(device.stream()) != cudaSuccess);
  CHECK_FALSE(engines[0]->EndStep(*open).ok());
  for (const auto& engine : engines) {
    for (int s = 0; s < 3; ++s) {
      const absl::Status status = Step(engine.get(), device);
      INFO(engine->strategy() << ": " << status);
      CHECK_FALSE(status.ok());
      CHECK(absl::StrContains(status.message(), "CUDA"));
    }
    (void)engine->SetBudget(Budget::Bytes(11 << 20));
    const EngineStats stats = engine->stats();
    CHECK(stats.peak_bytes <= stats.budget_bytes);
  }
  engines.clear();
  const auto late = Open(source, "on-demand");
  INFO(late.status());
  CHECK_FALSE(late.ok());
  CHECK(absl::StrContains(late.status().message(), "CUDA"));
}

}  // namespace
}  // namespace moert::test
