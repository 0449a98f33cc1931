// A host's thread has a context of its own making. The engine works in the runtime's, where its
// rows and streams are, and leaves the thread's as it was after every call.
#include <cuda.h>

#include <cstring>

#include "device_step.h"
#include "tests/support/catch.h"
#include "tests/support/run_engine.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {
namespace {

constexpr int64_t kRows = 4;

const SyntheticShape kShape{.experts = 16, .top_k = 4, .hidden = 192, .intermediate = 128};

/// Driver calls for contexts, which tests do not link.
struct Driver {
  // As CUDA 11 has it: cuCtxCreate_v2.
  CUresult (*create)(CUcontext*, unsigned, CUdevice) = Find<decltype(create)>("cuCtxCreate");
  CUresult (*destroy)(CUcontext) = Find<decltype(destroy)>("cuCtxDestroy");
  CUresult (*get)(CUcontext*) = Find<decltype(get)>("cuCtxGetCurrent");
  CUresult (*set)(CUcontext) = Find<decltype(set)>("cuCtxSetCurrent");

  template <typename F>
  static F Find(const char* name) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    REQUIRE(cudaGetDriverEntryPointByVersion(name, &found, 11000, cudaEnableDefault, &result) ==
            cudaSuccess);
    REQUIRE(found != nullptr);
    return reinterpret_cast<F>(found);
  }
};

CUcontext Current(const Driver& driver) {
  CUcontext context = nullptr;
  REQUIRE(driver.get(&context) == CUDA_SUCCESS);
  return context;
}

/// Steps whose engine calls find `own` current, and leave it so.
void Drive(const Driver& driver, CUcontext runtime, CUcontext own, Engine* engine,
           DeviceRowsBuffer* device, std::vector<float>* outputs) {
  const int64_t hidden = kShape.hidden;
  HiddenProcess process(hidden, 7);
  for (int s = 0; s < 4; ++s) {
    StepInfo info;
    info.rows = kRows;
    info.stream = device->stream();
    const auto step = engine->BeginStep(info);
    REQUIRE_OK(step.status());
    for (int l = 0; l < engine->model().num_layers(); ++l) {
      REQUIRE(driver.set(runtime) == CUDA_SUCCESS);
      device->Set(process.Next(kRows));
      REQUIRE(driver.set(own) == CUDA_SUCCESS);
      REQUIRE_OK(engine->Forward(*step, l, {device->x(), DType::kF32, kRows, hidden, hidden},
                                 {device->y(), DType::kF32, kRows, hidden, hidden}));
      CHECK(Current(driver) == own);
      REQUIRE(driver.set(runtime) == CUDA_SUCCESS);
      const std::vector<float> y = device->Get();
      outputs->insert(outputs->end(), y.begin(), y.end());
      REQUIRE(driver.set(own) == CUDA_SUCCESS);
    }
    REQUIRE_OK(engine->EndStep(*step));
    CHECK(Current(driver) == own);
  }
}

TEST_CASE("a context of the host's own making stays the thread's, and outputs are the same") {
  const auto source = std::make_shared<SyntheticSource>(kShape);
  const std::string strategy = GENERATE("on-demand", "fate");
  EngineOptions options;
  options.backend = BackendKind::kCuda;
  options.strategy = strategy;
  options.budget = Budget::Fraction(0.5);
  options.max_tokens_per_forward = kRows;
  DeviceRowsBuffer device(kRows * kShape.hidden);  // makes the runtime's context
  const Driver driver;
  const CUcontext runtime = Current(driver);
  CUcontext own = nullptr;
  REQUIRE(driver.create(&own, 0, 0) == CUDA_SUCCESS);
  REQUIRE(own != runtime);

  std::vector<float> usual, beside;
  for (const CUcontext context : {runtime, own}) {
    INFO(strategy << (context == own ? ", a context of its own" : ""));
    REQUIRE(driver.set(context) == CUDA_SUCCESS);
    {
      auto engine = Engine::Create(source, options);
      REQUIRE_OK(engine.status());
      CHECK(Current(driver) == context);
      REQUIRE_OK((*engine)->SetBudget(Budget::Fraction(0.4)));
      CHECK(Current(driver) == context);
      Drive(driver, runtime, context, engine->get(), &device, context == own ? &beside : &usual);
      (void)(*engine)->stats();
      CHECK(Current(driver) == context);
    }
    CHECK(Current(driver) == context);
  }
  REQUIRE(driver.destroy(own) == CUDA_SUCCESS);
  REQUIRE(driver.set(runtime) == CUDA_SUCCESS);
  REQUIRE(usual.size() == beside.size());
  CHECK(std::memcmp(usual.data(), beside.data(), usual.size() * sizeof(float)) == 0);
}

}  // namespace
}  // namespace moert::test
