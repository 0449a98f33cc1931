// The seam between the engine and what computes: the CPU's executor, the null executor of
// simulations, and an executor that has no capability beyond the path of a call.
#include "exec/executor.h"

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "plan/layer_planner.h"
#include "tests/support/executor_contract.h"

namespace moert {
namespace {

using test::ExecutorRig;
using test::SyntheticShape;
using test::SyntheticSource;

class HostMatrices final : public test::Matrices {
 public:
  void Set(const std::vector<float>& x, int64_t rows, int64_t cols, ExecutorCall* call) override {
    x_ = x;
    y_.assign(x.size(), std::numeric_limits<float>::quiet_NaN());
    call->hidden = {x_.data(), DType::kF32, rows, cols, cols};
    call->out = {y_.data(), DType::kF32, rows, cols, cols};
  }
  std::vector<float> Get() override { return y_; }

 private:
  std::vector<float> x_, y_;
};

TEST_CASE("the CPU executor keeps the contract of executors") {
  HostMatrices matrices;
  test::CheckExecutorContract({}, &matrices);
}

TEST_CASE("matrices that do not fit the layer are refused by name") {
  const SyntheticSource source(SyntheticShape{});
  const ExecutorRig rig({}, &source);
  const MoeLayerSpec& layer = rig.layer(0);
  constexpr int64_t kTokens = ExecutorRig::kTokens;
  HostMatrices matrices;
  ExecutorCall call;
  call.tokens = kTokens;
  matrices.Set(std::vector<float>(kTokens * layer.hidden), kTokens, layer.hidden, &call);
  const auto refusal = [&](const ExecutorCall& bad) {
    return std::string(rig.executor()->Check(bad, layer, false).message());
  };
  CHECK(refusal(call).empty());
  ExecutorCall bad = call;
  bad.hidden.rows = kTokens - 1;
  CHECK_THAT(refusal(bad), Catch::Contains("hidden: [4, 64]"));
  bad = call;
  bad.out.row_stride = layer.hidden - 1;
  CHECK_THAT(refusal(bad), Catch::Contains("out:") && Catch::Contains("row stride 63"));
  bad = call;
  bad.out.data = nullptr;
  CHECK_THAT(refusal(bad), Catch::Contains("at null"));
  bad = call;
  bad.hidden.dtype = DType::kI64;
  CHECK_THAT(refusal(bad), Catch::Contains("legal: f32, bf16, f16"));
}

TEST_CASE("a simulation counts blocks, reads nothing and takes given routings only") {
  EngineOptions options;
  options.simulate = true;
  CHECK_THAT(std::string(MakeBackend(options).status().message()),
             Catch::Contains("needs clock = kVirtual"));
  options.clock = ClockKind::kVirtual;
  const std::unique_ptr<Backend> backend = *MakeBackend(options);
  CHECK(backend->CheckLease().code() == absl::StatusCode::kFailedPrecondition);

  const SyntheticSource source(SyntheticShape{});
  const ModelConstants constants = *backend->ReadConstants(source);
  CHECK(constants.layer(0).gate.empty());
  CHECK(constants.shared_record(0) == nullptr);
  CHECK(constants.layer(0).shared_layout.bytes ==
        (*ModelConstants::Read(source)).layer(0).shared_layout.bytes);

  BudgetTracker budget(1000);
  const std::unique_ptr<BlockPool> pool = *backend->MakePool({400, 9}, 9, &budget);
  CHECK(pool->Take() >= 0);
  CHECK(pool->Take() >= 0);
  CHECK(pool->Take() < 0);  // the budget has no room, though no memory is held

  HardwareProfile profile;
  for (const bool cpu : {false, true}) {
    profile.cpu_executor = cpu;
    ExecutorParts parts;
    parts.profile = &profile;
    const std::unique_ptr<Executor> executor = *backend->MakeExecutor(parts);
    const MoeLayerSpec& layer = source.model().layers[0];
    CHECK(executor->Check({}, layer, /*routed=*/true).ok());
    CHECK(executor->Check({}, layer, /*routed=*/false).code() ==
          absl::StatusCode::kFailedPrecondition);
    CpuOffload* const offload = executor->cpu_offload();
    REQUIRE((offload != nullptr) == cpu);
    if (!cpu) continue;
    CHECK(offload->CpuCanCompute({0, 0}, 1));
    CHECK_FALSE(offload->CpuCanCompute({0, 0}, CpuMisses::kMaxTokens + 1));
  }
}

/// The least that a new backend has to write.
class SmallestExecutor final : public Executor {
  absl::Status Route(const ExecutorCall&, const RoutingRequest&, RoutingResult*) override {
    return absl::OkStatus();
  }
  absl::Status SetRouting(const ExecutorCall&, const RoutingResult&) override {
    return absl::OkStatus();
  }
  absl::Status Multiply(const ExecutorCall&, const RoutingResult&, absl::Span<const ReadyExpert>,
                        bool) override {
    return absl::OkStatus();
  }
  absl::Status Combine(const ExecutorCall&, const RoutingResult&) override {
    return absl::OkStatus();
  }
};

TEST_CASE("what an executor does not override it does not have") {
  SmallestExecutor smallest;
  Executor& executor = smallest;
  CHECK(executor.cpu_offload() == nullptr);
  CHECK_FALSE(executor.device_path()->present());
  CHECK_FALSE(executor.device_path()->cache()->lent());
  CHECK(executor.resident_forward() == nullptr);
  std::vector<float> scores;
  CHECK(executor.ScoreNext({}, true, &scores).code() == absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace moert
