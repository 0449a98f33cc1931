// Routing that the host gives in device memory: the same bits as in host memory, eager, captured
// and where experts are missing.
#include <random>
#include <vector>

#include "device_step.h"
#include "tests/support/catch.h"
#include "tests/support/run_engine.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {
namespace {

constexpr int64_t kRows = 12;

SyntheticShape Shape(RoutingKind kind) {
  SyntheticShape shape;
  shape.layers = 3;
  shape.experts = 16;
  shape.top_k = 4;
  shape.kind = kind;
  return shape;
}

/// A device array.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : size_(values.size()) {
    REQUIRE(cudaMalloc(&at_, size_ * sizeof(T)) == cudaSuccess);
    Set(values);
  }
  ~OnDevice() { cudaFree(at_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  void Set(const std::vector<T>& values) {
    REQUIRE(cudaMemcpy(at_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice) ==
            cudaSuccess);
  }
  std::vector<T> Get() const {
    std::vector<T> values(size_);
    REQUIRE(cudaMemcpy(values.data(), at_, size_ * sizeof(T), cudaMemcpyDeviceToHost) ==
            cudaSuccess);
    return values;
  }
  absl::Span<T> span() const { return {static_cast<T*>(at_), size_}; }

 private:
  const size_t size_;
  void* at_ = nullptr;
};

struct Given {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

/// `absent`: some slots are -1; one token has none at all.
Given RandomRouting(const SyntheticShape& shape, uint32_t seed, bool absent) {
  std::mt19937 random(seed);
  Given given;
  for (int64_t t = 0; t < kRows; ++t) {
    const auto first = static_cast<int32_t>(random() % shape.experts);
    for (int j = 0; j < shape.top_k; ++j) {
      const int32_t id = (first + j * 3) % shape.experts;
      given.ids.push_back(absent && (t == 5 || random() % 2 == 0) ? -1 : id);
      given.weights.push_back(0.1f + 0.05f * static_cast<float>(random() % 10));
    }
  }
  return given;
}

EngineOptions Options(const char* strategy, double fraction) {
  EngineOptions options;
  options.backend = BackendKind::kCuda;
  options.strategy = strategy;
  options.budget = Budget::Fraction(fraction);
  options.max_tokens_per_forward = kRows;
  return options;
}

absl::Status Forward(Engine* engine, StepId step, int layer, DeviceRowsBuffer* device,
                     const RoutedInput& routing) {
  const int64_t hidden = engine->model().layers[0].hidden;
  return engine->ForwardRouted(step, layer, {device->x(), DType::kF32, kRows, hidden, hidden},
                               routing, {device->y(), DType::kF32, kRows, hidden, hidden});
}

std::vector<float> Run(Engine* engine, DeviceRowsBuffer* device, const std::vector<float>& x,
                       const RoutedInput& routing) {
  StepInfo info;
  info.phase = Phase::kDecode;
  info.rows = kRows;
  info.stream = device->stream();
  auto step = engine->BeginStep(info);
  REQUIRE_OK(step.status());
  std::vector<float> outputs;
  for (int l = 0; l < engine->model().num_layers(); ++l) {
    device->Set(x);
    REQUIRE_OK(Forward(engine, *step, l, device, routing));
    const std::vector<float> y = device->Get();
    outputs.insert(outputs.end(), y.begin(), y.end());
  }
  REQUIRE_OK(engine->EndStep(*step));
  return outputs;
}

TEST_CASE("ids on the device give what ids in host memory do, experts missing or not") {
  for (const RoutingKind kind : {RoutingKind::kSoftmaxTopK, RoutingKind::kExternal}) {
    const SyntheticShape shape = Shape(kind);
    DeviceRowsBuffer device(kRows * shape.hidden);
    HiddenProcess process(shape.hidden, 5);
    const std::vector<float> x = process.Next(kRows);
    auto cpu = Options("resident", 1);
    cpu.backend = BackendKind::kCpu;
    for (const bool absent : {false, true}) {
      const Given given = RandomRouting(shape, 3, absent);
      const OnDevice<int32_t> ids(given.ids), used(std::vector<int32_t>(given.ids.size(), 7));
      const OnDevice<float> weights(given.weights);
      RoutedInput host;
      host.ids = given.ids;
      host.weights = given.weights;
      RoutedInput there;
      there.ids = ids.span();
      there.weights = weights.span();
      there.used_ids = used.span();
      there.place = Place::kDevice;
      std::vector<float> first;
      for (const auto& [strategy, fraction] :
           std::vector<std::pair<const char*, double>>{{"resident", 1}, {"on-demand", 0.4}}) {
        CAPTURE(static_cast<int>(kind), absent, strategy);
        auto engine =
            Engine::Create(std::make_shared<SyntheticSource>(shape), Options(strategy, fraction));
        REQUIRE_OK(engine.status());
        const std::vector<float> expected = Run(engine->get(), &device, x, host);
        const int64_t syncs = (*engine)->stats().host_syncs;
        for (int i = 0; i < 3; ++i) CHECK(Run(engine->get(), &device, x, there) == expected);
        CHECK(used.Get() == given.ids);
        CHECK(((*engine)->stats().host_syncs == syncs) == (std::string(strategy) == "resident"));
        if (first.empty()) first = expected;
        CHECK(expected == first);  // exact at any budget
      }
      // Against the CPU backend, which shares no code with the kernels.
      auto reference = Engine::Create(std::make_shared<SyntheticSource>(shape), cpu);
      REQUIRE_OK(reference.status());
      auto step = (*reference)->BeginStep({Phase::kDecode, kRows});
      REQUIRE_OK(step.status());
      std::vector<double> outputs;
      for (int l = 0; l < shape.layers; ++l) {
        std::vector<float> y(x.size());
        REQUIRE_OK((*reference)
                       ->ForwardRouted(
                           *step, l, {x.data(), DType::kF32, kRows, shape.hidden, shape.hidden},
                           host, {y.data(), DType::kF32, kRows, shape.hidden, shape.hidden}));
        outputs.insert(outputs.end(), y.begin(), y.end());
      }
      REQUIRE_OK((*reference)->EndStep(*step));
      CHECK(RelativeError(first, outputs) < 1e-4);
    }
  }
}

TEST_CASE("ids out of range on the device are taken for -1") {
  const SyntheticShape shape = Shape(RoutingKind::kExternal);
  DeviceRowsBuffer device(kRows * shape.hidden);
  HiddenProcess process(shape.hidden, 5);
  const std::vector<float> x = process.Next(kRows);
  auto engine = Engine::Create(std::make_shared<SyntheticSource>(shape), Options("resident", 1));
  REQUIRE_OK(engine.status());
  Given given = RandomRouting(shape, 9, true);
  OnDevice<int32_t> ids(given.ids);
  const OnDevice<float> weights(given.weights);
  RoutedInput there;
  there.ids = ids.span();
  there.weights = weights.span();
  there.place = Place::kDevice;
  const std::vector<float> expected = Run(engine->get(), &device, x, there);
  int i = 0;
  for (int32_t& id : given.ids) {
    if (id == -1) id = ++i % 2 == 0 ? 1 << 30 : shape.experts;
  }
  ids.Set(given.ids);
  CHECK(Run(engine->get(), &device, x, there) == expected);
}

TEST_CASE("a captured call reads ids as they are at replay") {
  const SyntheticShape shape = Shape(RoutingKind::kExternal);
  DeviceRowsBuffer device(kRows * shape.hidden);
  HiddenProcess process(shape.hidden, 5);
  const std::vector<float> x = process.Next(kRows);
  auto engine = Engine::Create(std::make_shared<SyntheticSource>(shape), Options("resident", 1));
  REQUIRE_OK(engine.status());
  REQUIRE((*engine)->graph_needs().capturable);
  const Given one = RandomRouting(shape, 1, true), two = RandomRouting(shape, 2, false);
  OnDevice<int32_t> ids(one.ids);
  OnDevice<float> weights(one.weights);
  RoutedInput there;
  there.ids = ids.span();
  there.weights = weights.span();
  there.place = Place::kDevice;
  StepInfo info;
  info.phase = Phase::kDecode;
  info.rows = kRows;
  info.stream = device.stream();
  auto step = (*engine)->BeginStep(info);
  REQUIRE_OK(step.status());
  device.Set(x);
  REQUIRE_OK(Forward(engine->get(), *step, 1, &device, there));
  const std::vector<float> first = device.Get();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeGlobal) == cudaSuccess);
  REQUIRE_OK(Forward(engine->get(), *step, 1, &device, there));
  RoutedInput host;
  host.ids = one.ids;
  host.weights = one.weights;
  CHECK(Forward(engine->get(), *step, 1, &device, host).code() ==
        absl::StatusCode::kFailedPrecondition);
  REQUIRE(cudaStreamEndCapture(device.stream(), &graph) == cudaSuccess);
  REQUIRE_OK((*engine)->EndStep(*step));
  REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
  const auto replay = [&] {
    auto again = (*engine)->BeginStep(info);
    REQUIRE_OK(again.status());
    device.Set(x);
    REQUIRE(cudaGraphLaunch(executable, device.stream()) == cudaSuccess);
    const std::vector<float> y = device.Get();
    REQUIRE_OK((*engine)->EndStep(*again));
    return y;
  };
  CHECK(replay() == first);
  ids.Set(two.ids);
  weights.Set(two.weights);
  host.ids = two.ids;
  host.weights = two.weights;
  const std::vector<float> all = Run(engine->get(), &device, x, host);
  const size_t layer = first.size();
  CHECK(replay() == std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(layer),
                                       all.begin() + static_cast<std::ptrdiff_t>(2 * layer)));
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

TEST_CASE("what cannot be read on the device is refused by name") {
  const SyntheticShape shape = Shape(RoutingKind::kExternal);
  DeviceRowsBuffer device(kRows * shape.hidden);
  auto engine = Engine::Create(std::make_shared<SyntheticSource>(shape), Options("resident", 1));
  REQUIRE_OK(engine.status());
  const Given given = RandomRouting(shape, 1, false);
  const OnDevice<int32_t> ids(given.ids);
  const OnDevice<float> weights(given.weights);
  StepInfo info;
  info.rows = kRows;
  info.stream = device.stream();
  auto step = (*engine)->BeginStep(info);
  REQUIRE_OK(step.status());
  RoutedInput there;
  there.ids = ids.span().subspan(1);
  there.weights = weights.span();
  there.place = Place::kDevice;
  CHECK(Forward(engine->get(), *step, 0, &device, there).code() ==
        absl::StatusCode::kInvalidArgument);
  there.ids = ids.span();
  const std::vector<float> scores(kRows * shape.experts);
  there.scores = scores;
  CHECK(Forward(engine->get(), *step, 0, &device, there).code() ==
        absl::StatusCode::kInvalidArgument);
  const int64_t hidden = shape.hidden;
  CHECK((*engine)
            ->Forward(*step, 0, {device.x(), DType::kF32, kRows, hidden, hidden},
                      {device.y(), DType::kF32, kRows, hidden, hidden})
            .code() == absl::StatusCode::kFailedPrecondition);
  REQUIRE_OK((*engine)->EndStep(*step));
}

}  // namespace
}  // namespace moert::test
