// Experts that the CPU multiplies beside the device.
#include <algorithm>
#include <numeric>
#include <random>

#include "device_step.h"
#include "plan/layer_planner.h"
#include "research/strategies/research_strategies.h"
#include "tests/support/catch.h"
#include "tests/support/run_engine.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {
namespace {

constexpr int64_t kRows = 6;
constexpr int kSteps = 12;

SyntheticShape Shape() {
  SyntheticShape shape;
  shape.layers = 3;
  shape.experts = 16;
  shape.top_k = 4;
  shape.hidden = 192;
  shape.intermediate = 176;
  shape.shared_intermediate = 80;
  return shape;
}

EngineOptions Options(const std::string& strategy, double share) {
  REQUIRE_OK(RegisterResearchStrategies());
  EngineOptions o;
  o.backend = BackendKind::kCuda;
  o.strategy = strategy;
  o.budget = Budget::Fraction(share);
  o.max_tokens_per_forward = 96;
  return o;
}

std::vector<float> OnDevice(Engine* engine, int steps, int64_t rows) {
  HiddenProcess process(Shape().hidden, 7);
  DeviceRowsBuffer device(rows * Shape().hidden);
  std::vector<float> outputs;
  for (int s = 0; s < steps; ++s) {
    REQUIRE_OK(RunDeviceStep(engine, Phase::kDecode, process.Next(rows), rows, &device, &outputs));
  }
  return outputs;
}

std::vector<double> OnCpu(const std::shared_ptr<SyntheticSource>& source, int steps, int64_t rows) {
  EngineOptions options = Options("on-demand", 1);
  options.backend = BackendKind::kCpu;
  options.max_tokens_per_forward = std::max<int64_t>(rows, options.max_tokens_per_forward);
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  HiddenProcess process(Shape().hidden, 7);
  std::vector<float> outputs;
  for (int s = 0; s < steps; ++s) {
    REQUIRE_OK(RunStep(engine->get(), Phase::kDecode, process.Next(rows), rows, &outputs));
  }
  return {outputs.begin(), outputs.end()};
}

TEST_CASE("experts of the CPU join the sum") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  const std::vector<double> reference = OnCpu(source, kSteps, kRows);
  for (const char* strategy : {"cpu-split", "hybrimoe-like:cpu=turns",
                               "importance:alpha=0,cpu=turns", "importance:alpha=0"}) {
    INFO(strategy);
    EngineOptions options = Options(strategy, 0.3);
    // A link so slow that the balancer wants the CPU.
    if (std::string(strategy) != "cpu-split") options.link_gbps = 0.2;
    auto engine = Engine::Create(source, options);
    REQUIRE_OK(engine.status());
    CHECK_FALSE((*engine)->exact());
    const std::vector<float> outputs = OnDevice(engine->get(), kSteps, kRows);
    // Within bf16 tolerance of the device's own products, not the same bits.
    CHECK(RelativeError(outputs, reference) < 5e-3);
    const EngineStats stats = (*engine)->stats();
    CHECK(stats.cpu_computed > 10);
    CHECK(stats.balance_cpu_ns > 0);
    // By completion a link this slow is left alone, but for the first use of each record.
    if (std::string(strategy) != "importance:alpha=0") CHECK(stats.balance_load_ns > 0);
    CHECK(stats.policy_fallbacks == 0);
    CHECK(stats.peak_bytes <= stats.budget_bytes);
  }
}

/// Weights multiply the inputs of its experts.
class WeightedInputs final : public SyntheticSource {
 public:
  WeightedInputs() : SyntheticSource(Shape()), weighted_(SyntheticSource::model()) {
    for (MoeLayerSpec& layer : weighted_.layers) layer.routing.weight_input = true;
  }
  const MoeModelSpec& model() const override { return weighted_; }

 private:
  MoeModelSpec weighted_;
};

TEST_CASE("experts of the CPU take inputs that weights multiply") {
  const auto source = std::make_shared<WeightedInputs>();
  auto engine = Engine::Create(source, Options("cpu-split", 0.3));
  REQUIRE_OK(engine.status());
  const std::vector<float> outputs = OnDevice(engine->get(), kSteps, kRows);
  CHECK(RelativeError(outputs, OnCpu(source, kSteps, kRows)) < 5e-3);
  CHECK((*engine)->stats().cpu_computed > 10);
}

TEST_CASE("what is not in host memory is loaded, not computed by the CPU") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  EngineOptions options = Options("cpu-split", 0.3);
  options.host_budget = 0;
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  const std::vector<float> outputs = OnDevice(engine->get(), 4, kRows);
  CHECK(RelativeError(outputs, OnCpu(source, 4, kRows)) < 5e-3);
  CHECK((*engine)->stats().cpu_computed == 0);
  CHECK((*engine)->stats().policy_fallbacks == 0);
}

/// How far rows of a prompt are from the reference. Layers feed each other, so rounding sends some
/// tokens to another expert than the reference has; the others must agree.
struct RowErrors {
  double median = 0;
  double share_beyond = 0;  // of rows further off than rounding explains
};
RowErrors CompareRows(const std::vector<float>& a, const std::vector<double>& b) {
  const auto hidden = static_cast<size_t>(Shape().hidden);
  REQUIRE(a.size() == b.size());
  std::vector<double> errors;
  for (size_t row = 0; row < b.size(); row += hidden) {
    errors.push_back(RelativeError({a.begin() + row, a.begin() + row + hidden},
                                   {b.begin() + row, b.begin() + row + hidden}));
  }
  std::sort(errors.begin(), errors.end());
  const auto beyond = errors.end() - std::upper_bound(errors.begin(), errors.end(), 2e-2);
  return {errors[errors.size() / 2],
          static_cast<double>(beyond) / static_cast<double>(errors.size())};
}

TEST_CASE("calls of very many rows stay off the CPU") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  constexpr int64_t kMost = CpuMisses::kMaxTokens;
  EngineOptions options = Options("cpu-split", 0.3);
  options.max_tokens_per_forward = kMost + 32;
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  OnDevice(engine->get(), 3, kRows);
  const int64_t before = (*engine)->stats().cpu_computed;
  std::vector<float> outputs = OnDevice(engine->get(), 2, kMost + 32);
  RowErrors errors = CompareRows(outputs, OnCpu(source, 2, kMost + 32));
  CHECK(errors.median < 5e-3);
  CHECK(errors.share_beyond < 0.1);
  CHECK((*engine)->stats().cpu_computed == before);
  outputs = OnDevice(engine->get(), 2, kMost);
  errors = CompareRows(outputs, OnCpu(source, 2, kMost));
  CHECK(errors.median < 5e-3);
  CHECK(errors.share_beyond < 0.1);
  CHECK((*engine)->stats().cpu_computed > before);
}

TEST_CASE("a load fails while the CPU works: an error of the step, and the engine goes on") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  EngineOptions options = Options("cpu-split", 0.3);
  options.host_budget = int64_t{2} << 20;  // some records stay in host memory, others are read
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  OnDevice(engine->get(), 6, kRows);
  source->set_broken(true);
  DeviceRowsBuffer device(kRows * Shape().hidden);
  HiddenProcess other(Shape().hidden, 99);
  std::vector<float> ignored;
  absl::Status status;
  for (int s = 0; s < 20 && status.ok(); ++s) {
    status =
        RunDeviceStep(engine->get(), Phase::kDecode, other.Next(kRows), kRows, &device, &ignored);
  }
  CHECK(status.code() == absl::StatusCode::kDataLoss);
  source->set_broken(false);
  CHECK(RelativeError(OnDevice(engine->get(), 4, kRows), OnCpu(source, 4, kRows)) < 5e-3);
  CHECK((*engine)->stats().cpu_computed > 0);
}

TEST_CASE("a routing from the host is what the device and the CPU execute") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  const int64_t hidden = Shape().hidden;
  EngineOptions cpu_options = Options("on-demand", 1);
  cpu_options.backend = BackendKind::kCpu;
  auto cpu = Engine::Create(source, cpu_options);
  REQUIRE_OK(cpu.status());
  for (const char* strategy : {"resident", "on-demand", "cpu-split"}) {
    INFO(strategy);
    auto engine =
        Engine::Create(source, Options(strategy, std::string(strategy) == "resident" ? 1.0 : 0.3));
    REQUIRE_OK(engine.status());
    DeviceRowsBuffer device(kRows * hidden);
    HiddenProcess process(hidden, 31);
    std::mt19937 rng(5);
    for (int s = 0; s < 8; ++s) {
      const std::vector<float> x = process.Next(kRows);
      std::vector<int32_t> ids, order(16);
      std::iota(order.begin(), order.end(), 0);
      std::vector<float> weights;
      for (int64_t t = 0; t < kRows; ++t) {
        std::shuffle(order.begin(), order.end(), rng);
        ids.insert(ids.end(), order.begin(), order.begin() + 4);
        for (int j = 0; j < 4; ++j) weights.push_back(0.1f + 0.1f * static_cast<float>(j));
      }
      RoutedInput routed;
      routed.ids = ids;
      routed.weights = weights;
      std::vector<float> expected(x.size());
      auto cpu_step = (*cpu)->BeginStep({Phase::kDecode, kRows});
      REQUIRE_OK(cpu_step.status());
      REQUIRE_OK((*cpu)->ForwardRouted(*cpu_step, 1, {x.data(), DType::kF32, kRows, hidden, hidden},
                                       routed,
                                       {expected.data(), DType::kF32, kRows, hidden, hidden}));
      REQUIRE_OK((*cpu)->EndStep(*cpu_step));
      StepInfo info;
      info.phase = Phase::kDecode;
      info.rows = kRows;
      info.stream = device.stream();
      auto step = (*engine)->BeginStep(info);
      REQUIRE_OK(step.status());
      device.Set(x);
      REQUIRE_OK((*engine)->ForwardRouted(*step, 1,
                                          {device.x(), DType::kF32, kRows, hidden, hidden}, routed,
                                          {device.y(), DType::kF32, kRows, hidden, hidden}));
      const std::vector<float> y = device.Get();
      REQUIRE_OK((*engine)->EndStep(*step));
      CHECK(RelativeError(y, {expected.begin(), expected.end()}) < 5e-3);
    }
    if (std::string(strategy) == "cpu-split") CHECK((*engine)->stats().cpu_computed > 0);
  }
}

}  // namespace
}  // namespace moert::test
