// No call of the driver waits for the device while layers run whose experts are all there, eager or
// replayed: counted by driver_counter.cc, which is preloaded.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "device_step.h"
#include "tests/support/catch.h"
#include "tests/support/run_engine.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {
namespace {

constexpr int64_t kRows = 8;
constexpr int kSteps = 20;

long long Calls(int kind) {
  using Count = long long (*)(int);
  static const auto count = reinterpret_cast<Count>(dlsym(RTLD_DEFAULT, "moert_driver_calls"));
  REQUIRE(count != nullptr);  // run with LD_PRELOAD=libmoert_driver_counter.so
  return count(kind);
}

struct Layers {
  Engine* engine;
  DeviceRowsBuffer* device;
  int64_t hidden;

  void Forward(StepId step) const {
    const float* from = device->x();
    for (int l = 0; l < engine->model().num_layers(); ++l) {
      REQUIRE_OK(engine->Forward(step, l, {from, DType::kF32, kRows, hidden, hidden},
                                 {device->y(), DType::kF32, kRows, hidden, hidden}));
      from = device->y();
    }
  }
};

void Check(const SyntheticShape& shape, const std::string& strategy, double fraction) {
  INFO(strategy);
  EngineOptions options;
  options.backend = BackendKind::kCuda;
  options.strategy = strategy;
  options.budget = Budget::Fraction(fraction);
  options.max_tokens_per_forward = kRows;
  auto engine = Engine::Create(std::make_shared<SyntheticSource>(shape), options);
  REQUIRE_OK(engine.status());
  DeviceRowsBuffer device(kRows * shape.hidden);
  const Layers layers{engine->get(), &device, shape.hidden};
  HiddenProcess process(shape.hidden, 5);
  StepInfo info;
  info.phase = Phase::kDecode;
  info.rows = kRows;
  info.stream = device.stream();

  // The counter counts: this waits once.
  device.Set(process.Next(kRows));
  const long long before = Calls(0);
  device.Get();
  CHECK(Calls(0) == before + 1);

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  auto first = (*engine)->BeginStep(info);
  REQUIRE_OK(first.status());
  layers.Forward(*first);  // whatever is prepared at the first call
  REQUIRE(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeGlobal) == cudaSuccess);
  layers.Forward(*first);
  REQUIRE(cudaStreamEndCapture(device.stream(), &graph) == cudaSuccess);
  REQUIRE_OK((*engine)->EndStep(*first));
  REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);

  const long long waits = Calls(0), launches = Calls(1);
  for (int s = 0; s < kSteps; ++s) {
    auto step = (*engine)->BeginStep(info);
    REQUIRE_OK(step.status());
    layers.Forward(*step);
    REQUIRE_OK((*engine)->EndStep(*step));
  }
  CHECK(Calls(0) == waits);
  const long long eager = Calls(1) - launches;
  CHECK(eager >= kSteps * shape.layers * 3);

  const long long graphs = Calls(2), single = Calls(1);
  for (int s = 0; s < kSteps; ++s) {
    auto step = (*engine)->BeginStep(info);
    REQUIRE_OK(step.status());
    REQUIRE(cudaGraphLaunch(executable, device.stream()) == cudaSuccess);
    REQUIRE_OK((*engine)->EndStep(*step));
  }
  CHECK(Calls(0) == waits);
  CHECK(Calls(2) == graphs + kSteps);
  // Beside the graph only switched handles are written.
  CHECK(Calls(1) - single <= kSteps * shape.layers);
  CHECK((*engine)->stats().host_syncs == 0);
  CHECK((*engine)->stats().graph_captured);
  std::printf("%s: %d eager steps %lld launches, %d replays %lld single launches, 0 waits\n",
              strategy.c_str(), kSteps, eager, kSteps, Calls(1) - single);
  REQUIRE(cudaStreamSynchronize(device.stream()) == cudaSuccess);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

TEST_CASE("no host synchronization when every expert is there") {
  SyntheticShape shape;
  shape.layers = 4;
  shape.experts = 16;
  shape.top_k = 4;
  Check(shape, "resident", 1);
  shape.low_version = true;  // two versions, mixed among the experts
  Check(shape, "dynaexq:hi=bf16,lo=low,interval_ms=0.001", 1);
}

}  // namespace
}  // namespace moert::test
