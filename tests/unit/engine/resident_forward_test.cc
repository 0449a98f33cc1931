// Resident-forward prediction: what the host is given, what its answer is used for, what is
// counted.
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "moert/engine.h"
#include "moert/expert_store.h"
#include "tests/support/catch.h"
#include "tests/support/run_engine.h"
#include "tests/support/synthetic_source.h"

namespace moert {
namespace {

using test::HiddenProcess;
using test::SyntheticShape;
using test::SyntheticSource;

constexpr int64_t kRows = 3;

SyntheticShape Shape() {
  SyntheticShape shape;
  shape.layers = 4;
  shape.experts = 16;
  shape.top_k = 4;
  return shape;
}

EngineOptions Options(const std::string& strategy, double budget = 0.4) {
  EngineOptions options;
  options.strategy = strategy;
  options.budget.fraction = budget;
  options.clock = ClockKind::kVirtual;
  options.threads = 1;
  options.max_tokens_per_forward = kRows;
  return options;
}

std::unique_ptr<Engine> Open(const EngineOptions& options) {
  auto engine = Engine::Create(std::make_shared<SyntheticSource>(Shape()), options);
  REQUIRE_OK(engine.status());
  return *std::move(engine);
}

/// A host whose layers' inputs do not depend on outputs, so that it can predict them perfectly.
struct Host {
  std::vector<std::vector<float>> inputs;  // [layers] of this step
  std::vector<float> outputs;              // of all layers of all steps
  int calls = 0;
  std::function<bool(const PartialOutput&)> predict;

  void Step(Engine* engine, HiddenProcess* process, Phase phase = Phase::kDecode) {
    const int layers = engine->model().num_layers();
    const int64_t hidden = engine->model().layers[0].hidden;
    inputs.clear();
    for (int l = 0; l < layers; ++l) inputs.push_back(process->Next(kRows));
    StepInfo info{phase, kRows, {}};
    if (predict != nullptr) {
      info.predict_next = [this](const PartialOutput& partial) {
        ++calls;
        return predict(partial);
      };
    }
    const auto step = engine->BeginStep(info);
    REQUIRE_OK(step.status());
    std::vector<float> y(kRows * hidden);
    for (int l = 0; l < layers; ++l) {
      REQUIRE_OK(engine->Forward(*step, l, {inputs[l].data(), DType::kF32, kRows, hidden, hidden},
                                 {y.data(), DType::kF32, kRows, hidden, hidden}));
      outputs.insert(outputs.end(), y.begin(), y.end());
    }
    REQUIRE_OK(engine->EndStep(*step));
  }

  bool TellTrueInput(const PartialOutput& partial) {
    const std::vector<float>& next = inputs[partial.layer + 1];
    REQUIRE(partial.next_input.rows * partial.next_input.cols == static_cast<int64_t>(next.size()));
    REQUIRE(partial.next_input.row_stride == partial.next_input.cols);
    std::memcpy(partial.next_input.data, next.data(), next.size() * sizeof(float));
    return true;
  }
};

TEST_CASE("a host that predicts perfectly: every prediction is recalled and every prefetch used") {
  const auto engine = Open(Options("importance:alpha=0"));
  HiddenProcess process(64, 3);
  Host host;
  host.predict = [&](const PartialOutput& partial) { return host.TellTrueInput(partial); };
  for (int s = 0; s < 30; ++s) host.Step(engine.get(), &process);
  const EngineStats stats = engine->stats();
  CHECK(host.calls == 30 * 3);  // not after the last layer
  CHECK(stats.predictions_resident_forward == host.calls);
  CHECK(stats.predictions_next_gate == 30);  // the wrap from the last layer to the first
  CHECK(stats.policy_fallbacks == 0);
  CHECK(stats.prefetch_issued > 100);
  CHECK(stats.prefetch_active == stats.prefetch_issued);
  CHECK(stats.prefetch_recalled == stats.prefetch_predicted);

  // The gate alone knows nothing of these inputs.
  const auto gate = Open(Options("importance:alpha=0,predict=gate"));
  HiddenProcess same(64, 3);
  Host other = {};
  other.predict = [&](const PartialOutput& partial) { return other.TellTrueInput(partial); };
  for (int s = 0; s < 30; ++s) other.Step(gate.get(), &same);
  CHECK(other.calls == 0);
  CHECK(gate->stats().predictions_resident_forward == 0);
  CHECK(gate->stats().predictions_next_gate == 30 * 4);
  CHECK(gate->stats().prefetch_recalled < gate->stats().prefetch_predicted);
  // A prediction never touches the output.
  CHECK(other.outputs == host.outputs);
}

TEST_CASE("the partial output is that of the shared expert and of the experts that were present") {
  const auto engine = Open(Options("importance:alpha=0"));
  const auto all = Open(Options("resident", 1.0));
  HiddenProcess process(64, 5), again(64, 5);
  Host host, full;
  std::vector<std::vector<Residency>> before;
  int strict = 0;
  double partial_error = 0, full_error = 0;
  std::vector<std::vector<float>> partials(4);
  host.predict = [&](const PartialOutput& partial) {
    CHECK(partial.output.rows == kRows);
    CHECK(partial.output.dtype == DType::kF32);
    const float* data = static_cast<const float*>(partial.output.data);
    partials[partial.layer].assign(data, data + kRows * partial.output.cols);
    return host.TellTrueInput(partial);
  };
  for (int s = 0; s < 20; ++s) {
    for (auto& p : partials) p.clear();
    host.Step(engine.get(), &process);
    full.Step(all.get(), &again);
    const size_t layer_floats = kRows * 64;
    for (int l = 0; l < 3; ++l) {
      REQUIRE(partials[l].size() == layer_floats);
      const float* y = full.outputs.data() + (s * 4 + l) * layer_floats;
      double error = 0, norm = 0;
      for (size_t i = 0; i < layer_floats; ++i) {
        const double d = static_cast<double>(y[i]) - static_cast<double>(partials[l][i]);
        error += d * d;
        norm += static_cast<double>(y[i]) * static_cast<double>(y[i]);
      }
      partial_error += error;
      full_error += norm;
      strict += error > 1e-6 * norm;
    }
  }
  CHECK(strict > 10);                       // something was missing,
  CHECK(partial_error < 0.8 * full_error);  // and most was there
}

TEST_CASE("a host that cannot tell or throws leaves it to the next layer's gate") {
  const auto engine = Open(Options("importance:alpha=0.3"));
  const auto plain = Open(Options("importance:alpha=0.3"));
  HiddenProcess process(64, 7), same(64, 7);
  Host host, none;
  host.predict = [&](const PartialOutput& partial) -> bool {
    if (partial.layer == 1) throw std::runtime_error("the host's own");
    return false;
  };
  for (int s = 0; s < 10; ++s) {
    host.Step(engine.get(), &process);
    none.Step(plain.get(), &same);
  }
  CHECK(host.calls == 30);
  CHECK(engine->stats().policy_fallbacks == 30);
  CHECK(engine->stats().predictions_resident_forward == 0);
  CHECK(engine->stats().predictions_next_gate == 40);
  CHECK(plain->stats().policy_fallbacks == 0);
  CHECK(plain->stats().predictions_next_gate == 40);
  CHECK(engine->stats().prefetch_recalled == plain->stats().prefetch_recalled);
}

TEST_CASE("fate asks the host, too, and a fetch, which multiplies nothing, does not") {
  const auto engine = Open(Options("fate"));
  const auto gate = Open(Options("fate:predict=gate"));
  HiddenProcess process(64, 3), same(64, 3);
  Host host, other;
  host.predict = [&](const PartialOutput& partial) { return host.TellTrueInput(partial); };
  other.predict = [&](const PartialOutput& partial) { return other.TellTrueInput(partial); };
  for (int s = 0; s < 30; ++s) {
    host.Step(engine.get(), &process);
    other.Step(gate.get(), &same);
  }
  CHECK(host.calls == 30 * 3);
  CHECK(other.calls == 0);
  CHECK(host.outputs == other.outputs);
  const EngineStats told = engine->stats(), guessed = gate->stats();
  CHECK(told.hit_ratio() > guessed.hit_ratio());
  CHECK(StalledNs(told) < StalledNs(guessed));

  StepInfo info{Phase::kDecode, 1, {}};
  info.predict_next = [&](const PartialOutput&) { return ++host.calls > 0; };
  const auto step = engine->BeginStep(info);
  REQUIRE_OK(step.status());
  const std::vector<int32_t> ids = {0, 1, 2, 3};
  const std::vector<float> next = {9, 8, 7, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  FetchInput input;
  input.ids = ids;
  input.next_scores = next;
  SlotView view;
  REQUIRE_OK(engine->Fetch(*step, 0, input, &view));
  REQUIRE_OK(engine->ReleaseFetched(*step, 0));
  REQUIRE_OK(engine->EndStep(*step));
  CHECK(host.calls == 30 * 3);
  CHECK(engine->stats().predictions_next_gate == guessed.predictions_next_gate - 30 * 3 + 1);
}

TEST_CASE("prefill and layers that have everything do not ask the host") {
  HiddenProcess process(64, 9);
  Host host;
  host.predict = [&](const PartialOutput& partial) { return host.TellTrueInput(partial); };
  const auto engine = Open(Options("importance:alpha=0.3"));
  host.Step(engine.get(), &process, Phase::kPrefill);
  CHECK(host.calls == 0);
  CHECK(engine->stats().predictions_next_gate == 4);

  const auto roomy = Open(Options("importance:alpha=0.3", 1.0));
  for (int s = 0; s < 60; ++s) host.Step(roomy.get(), &process);
  const int warm = host.calls;
  for (int s = 0; s < 5; ++s) host.Step(roomy.get(), &process);
  CHECK(warm > 0);
  CHECK(host.calls == warm);
}

}  // namespace
}  // namespace moert
