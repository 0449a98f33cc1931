// What tests/fault asserts on the CPU, of the calls below the CUDA backend: the n-th of a kind
// fails, once and with all later ones, for n over an engine's life. Afterwards the same engine,
// or a new one where none was made, has the bits of a run without faults, and device memory is
// back.
#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda_fault.h"
#include "device_step.h"
#include "tests/support/catch.h"
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

/// Outputs of the steps up to the first that fails.
struct Outcome {
  absl::Status status;
  std::vector<float> outputs;
};
Outcome Drive(Engine* engine) {
  HiddenProcess process(Shape().hidden, 7);
  const int64_t hidden = Shape().hidden;
  Outcome outcome;
  for (int s = 0; s < kSteps; ++s) {
    const std::vector<float> x = process.Next(kRows);
    auto own = std::make_optional<TestsOwnCalls>();
    DeviceRowsBuffer device(kRows * hidden);
    device.Set(x);
    own.reset();
    StepInfo info;
    info.phase = s == 0 ? Phase::kPrefill : Phase::kDecode;
    info.rows = kRows;
    info.stream = device.stream();
    const auto step = engine->BeginStep(info);
    if (!step.ok()) {
      own.emplace();
      outcome.status = step.status();
      return outcome;
    }
    for (int l = 0; l < engine->model().num_layers() && outcome.status.ok(); ++l) {
      outcome.status = engine->Forward(*step, l, {device.x(), DType::kF32, kRows, hidden, hidden},
                                       {device.y(), DType::kF32, kRows, hidden, hidden});
    }
    outcome.status.Update(engine->EndStep(*step));
    own.emplace();  // to the end, for what `device` does when it dies too
    const std::vector<float> y = device.Get();
    if (!outcome.status.ok()) return outcome;
    outcome.outputs.insert(outcome.outputs.end(), y.begin(), y.end());
  }
  return outcome;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b, size_t count) {
  return a.size() >= count && b.size() >= count &&
         std::memcmp(a.data(), b.data(), count * sizeof(float)) == 0;
}

size_t FreeBytes() {
  size_t free = 0, total = 0;
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  return free;
}

/// One life with a fault. How many calls failed.
long LiveWith(const std::string& strategy, CudaFault kind, long n, bool lasting,
              const std::vector<float>& expected) {
  INFO(strategy << ": " << CudaFaultName(kind) << " " << n << (lasting ? " and later" : ""));
  const auto source = std::make_shared<SyntheticSource>(Shape());
  ArmCudaFault(kind, n, lasting);
  auto engine = Engine::Create(source, Options(strategy));
  Outcome during;
  if (engine.ok()) during = Drive(engine->get());
  const long failed = DisarmCudaFault();
  CHECK(SameBits(during.outputs, expected, during.outputs.size()));
  if (!engine.ok()) engine = Engine::Create(source, Options(strategy));
  REQUIRE_OK(engine.status());
  const Outcome after = Drive(engine->get());
  REQUIRE_OK(after.status);
  CHECK(SameBits(after.outputs, expected, expected.size()));
  CHECK(cudaGetLastError() == cudaSuccess);  // the library says its errors, and leaves none behind
  return failed;
}

TEST_CASE("every CUDA call may fail: a status, the engine goes on, memory comes back") {
  struct Sweep {
    std::string strategy;
    long dense;  // the step between ns is 1 up to here, then grows with n
  };
  for (const auto& [strategy, dense] :
       {Sweep{"on-demand", 4}, Sweep{"resident", 2}, Sweep{"fate", 1}}) {
    const auto source = std::make_shared<SyntheticSource>(Shape());
    std::vector<float> expected;
    for (int run = 0; run < 2; ++run) {  // the second has all that lasts for the process
      auto engine = Engine::Create(source, Options(strategy));
      REQUIRE_OK(engine.status());
      const Outcome outcome = Drive(engine->get());
      REQUIRE_OK(outcome.status);
      expected = outcome.outputs;
    }
    const size_t free = FreeBytes();
    long faults = 0;
    for (int kind = 0; kind < static_cast<int>(CudaFault::kKinds); ++kind) {
      for (const bool lasting : {false, true}) {
        for (long n = 1;; n += 1 + n / dense) {
          const long failed =
              LiveWith(strategy, static_cast<CudaFault>(kind), n, lasting, expected);
          faults += failed > 0;
          if (failed == 0) break;
        }
        CHECK(FreeBytes() == free);
      }
    }
    INFO(strategy);
    CHECK(faults > 50);
  }
}

}  // namespace
}  // namespace moert::test
