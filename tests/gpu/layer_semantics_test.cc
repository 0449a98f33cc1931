// Layers with what today's models add, on a device: eager and replayed, everything resident or a
// quarter of it, routed by the layer or from outside. Against plain loops over the records, sums in
// double precision.
#include <algorithm>
#include <string>
#include <vector>

#include "device_array.h"
#include "device_step.h"
#include "mixed_source.h"
#include "tests/support/catch.h"

namespace moert::test {
namespace {

constexpr int kExperts = 12, kTopK = 3, kVocabulary = 37;

MoeLayerSpec Plain(int64_t hidden, int64_t intermediate) {
  MoeLayerSpec layer;
  layer.num_experts = kExperts;
  layer.hidden = hidden;
  layer.intermediate = intermediate;
  layer.routing.top_k = kTopK;
  return layer;
}

MoeLayerSpec GptOss(int64_t hidden, int64_t intermediate) {
  MoeLayerSpec layer = Plain(hidden, intermediate);
  layer.routing.kind = RoutingKind::kTopKSoftmax;
  layer.routing.logit_bias = layer.expert_bias = true;
  layer.activation.alpha = 1.702f;
  layer.activation.limit = 1.25f;  // of the published 7 nothing would be seen
  layer.activation.up_offset = 1;
  return layer;
}

MoeLayerSpec Llama4(int64_t hidden, int64_t intermediate) {
  MoeLayerSpec layer = Plain(hidden, intermediate);
  layer.routing.kind = RoutingKind::kTopKSigmoid;
  layer.routing.weight_input = true;
  layer.shared_intermediate = intermediate;
  return layer;
}

MoeLayerSpec DeepSeekV4(int64_t hidden, int64_t intermediate) {
  MoeLayerSpec layer = Plain(hidden, intermediate);
  layer.routing.kind = RoutingKind::kSqrtSoftplusGrouped;
  layer.routing.renormalize = layer.routing.selection_bias = true;
  layer.routing.scaling = 1.5f;
  layer.activation.limit = 0.75f;
  layer.shared_intermediate = 48;
  return layer;
}

MoeLayerSpec ByTokenId(int64_t hidden, int64_t intermediate) {
  MoeLayerSpec layer = DeepSeekV4(hidden, intermediate);
  layer.routing.selection_bias = false;
  layer.routing.hash_vocab = kVocabulary;
  return layer;
}

MoeLayerSpec Gemma4(int64_t hidden, int64_t intermediate) {
  MoeLayerSpec layer = Plain(hidden, intermediate);
  layer.routing.renormalize = layer.routing.expert_scales = true;
  layer.activation = Activation::kGeluTanh;
  return layer;
}

MoeLayerSpec NemotronH(int64_t hidden, int64_t intermediate) {
  MoeLayerSpec layer = Plain(hidden, intermediate);
  layer.routing.kind = RoutingKind::kSigmoidGrouped;
  layer.activation = Activation::kRelu2;
  layer.activation.gated = false;
  layer.shared_intermediate = 40;
  return layer;
}

/// Things that no model has together.
MoeLayerSpec Together(int64_t hidden, int64_t intermediate) {
  MoeLayerSpec layer = GptOss(hidden, intermediate);
  layer.routing.weight_input = layer.routing.expert_scales = true;
  layer.routing.scaling = 0.75f;
  layer.activation.function = Activation::kGelu;
  layer.activation.alpha = 1;
  layer.shared_intermediate = 56;
  layer.shared_gate = true;
  return layer;
}

MoeLayerSpec UngatedWithBiases(int64_t hidden, int64_t intermediate) {
  MoeLayerSpec layer = Plain(hidden, intermediate);
  layer.routing.renormalize = true;
  layer.activation.alpha = 1.5f;
  layer.activation.gated = false;
  layer.expert_bias = true;
  return layer;
}

struct Model {
  const char* name;
  MoeLayerSpec (*layer)(int64_t hidden, int64_t intermediate);
};
constexpr Model kModels[] = {{"gpt-oss", GptOss},
                             {"llama 4", Llama4},
                             {"deepseek v4", DeepSeekV4},
                             {"deepseek v4 by token id", ByTokenId},
                             {"gemma 4", Gemma4},
                             {"nemotron-h", NemotronH},
                             {"everything together", Together},
                             {"biases without a gate", UngatedWithBiases}};

struct Width {
  const char* scheme;
  double relative;  // what the norm of the error may be
};
constexpr Width kWidths[] = {{"bf16", 2e-3},          {"w4a16_g128", 2e-3}, {"mxfp4", 2e-3},
                             {"w8a8", 1e-2},          {"w4a8_g128", 1e-2},  {"nvfp4", 2e-3},
                             {"w8a8_fp8", 1e-2},      {"fp8_b128", 2e-3},   {"w4a16_g128+h", 2e-3},
                             {"w2a16_g64_asym", 2e-3}};

std::unique_ptr<Engine> Open(const std::shared_ptr<MixedSource>& source, const char* strategy,
                             double fraction, int64_t most_rows) {
  EngineOptions options;
  options.backend = BackendKind::kCuda;
  options.strategy = strategy;
  options.budget = Budget::Fraction(fraction);
  options.max_tokens_per_forward = most_rows;
  options.host_budget = int64_t{256} << 20;  // holds every record
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  return *std::move(engine);
}

/// A captured call of the layer, and replays of it.
class Graph {
 public:
  Graph(Engine* engine, const MixedStep& rows)
      : engine_(engine), rows_(rows), device_(rows.x.size()) {
    const StepId step = Begin(rows.token_ids);
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamBeginCapture(device_.stream(), cudaStreamCaptureModeGlobal) == cudaSuccess);
    const int64_t hidden = engine->model().layers[0].hidden;
    const absl::Status status =
        engine->Forward(step, 0, {device_.x(), DType::kF32, rows.rows, hidden, hidden},
                        {device_.y(), DType::kF32, rows.rows, hidden, hidden});
    REQUIRE(cudaStreamEndCapture(device_.stream(), &graph) == cudaSuccess);
    REQUIRE_OK(status);
    REQUIRE_OK(engine->EndStep(step));
    REQUIRE(cudaGraphInstantiate(&graph_, graph, 0) == cudaSuccess);
    cudaGraphDestroy(graph);
  }
  ~Graph() { cudaGraphExecDestroy(graph_); }

  std::vector<float> Replay(absl::Span<const int32_t> token_ids) {
    const StepId step = Begin(token_ids);
    device_.Set(rows_.x);
    REQUIRE(cudaGraphLaunch(graph_, device_.stream()) == cudaSuccess);
    const std::vector<float> y = device_.Get();
    REQUIRE_OK(engine_->EndStep(step));
    return y;
  }

 private:
  StepId Begin(absl::Span<const int32_t> token_ids) {
    StepInfo info;
    info.phase = Phase::kDecode;
    info.rows = rows_.rows;
    info.token_ids = token_ids;
    info.stream = device_.stream();
    auto step = engine_->BeginStep(info);
    REQUIRE_OK(step.status());
    return *step;
  }

  Engine* const engine_;
  const MixedStep& rows_;
  DeviceRowsBuffer device_;
  cudaGraphExec_t graph_ = nullptr;
};

std::vector<float> Eager(Engine* engine, const MixedStep& step,
                         absl::Span<const int32_t> token_ids) {
  DeviceRowsBuffer device(step.x.size());
  std::vector<float> y;
  REQUIRE_OK(RunDeviceStep(engine, Phase::kPrefill, step.x, step.rows, &device, &y, token_ids));
  return y;
}

/// Steps of so many rows, eager, then replayed.
void CheckLayer(const MoeLayerSpec& layer, const Width& width, const std::vector<int64_t>& rows) {
  const auto source = std::make_shared<MixedSource>(layer, std::vector<std::string>{width.scheme});
  std::vector<MixedStep> steps;
  for (const int64_t r : rows) steps.emplace_back(*source, r);
  for (const char* strategy : {"resident", "on-demand"}) {
    const auto engine = Open(source, strategy, std::string(strategy) == "resident" ? 1.0 : 0.25,
                             *std::max_element(rows.begin(), rows.end()));
    REQUIRE(engine->graph_needs().capturable);
    for (MixedStep& step : steps) {
      CAPTURE(width.scheme, layer.hidden, layer.intermediate, step.rows, strategy);
      step.Check(Eager(engine.get(), step, step.token_ids), layer.hidden, width.relative);
    }
    for (const MixedStep& step : steps) {
      CAPTURE(width.scheme, layer.hidden, layer.intermediate, step.rows, strategy);
      Graph graph(engine.get(), step);
      CHECK(graph.Replay(step.token_ids) == step.first);
      // Each replay goes by the ids that it is given.
      std::vector<int32_t> others = step.token_ids;
      for (int32_t& id : others) id = (id + 1) % kVocabulary;
      const std::vector<float> other = graph.Replay(others);
      CHECK((other == step.first) == (layer.routing.hash_vocab == 0));
      CHECK(graph.Replay(step.token_ids) == step.first);
      CHECK(Eager(engine.get(), step, others) == other);
    }
  }
}

TEST_CASE("layers of today's models compute what their records say") {
  for (const Model& model : kModels) {
    INFO(model.name);
    for (const Width& width : kWidths) {
      CheckLayer(model.layer(256, 128), width, {1, 3, 8, 9, 32, 33, 128, 700});
    }
  }
}

TEST_CASE("over odd shapes") {
  for (const Model& model : kModels) {
    INFO(model.name);
    for (const char* scheme : {"bf16", "w4a16_g128", "mxfp4", "w8a8"}) {
      const Width width{scheme, 1e-2};
      CheckLayer(model.layer(72, 40), width, {5, 300});
      CheckLayer(model.layer(1040, 336), width, {2, 90});
    }
  }
}

// As in gpt-oss: K in parts for several warps, and row blocks that are not whole tiles.
TEST_CASE("the widths of gpt-oss") {
  for (const char* scheme : {"bf16", "mxfp4"}) {
    CheckLayer(GptOss(2880, 144), {scheme, 2e-3}, {1, 9, 150});
    CheckLayer(GptOss(144, 2880), {scheme, 2e-3}, {3, 40, 150});
  }
}

// Few and small, for compute-sanitizer.
TEST_CASE("small cases of every model", "[small]") {
  for (const Model& model : kModels) {
    INFO(model.name);
    CheckLayer(model.layer(72, 40), {"mxfp4", 1e-2}, {3, 12, 120});
  }
}

/// The routing that RoutedInput gives a layer.
struct Given {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

std::vector<float> Routed(Engine* engine, const MixedStep& rows, const Given& given, Place place) {
  const DeviceArray<int32_t> ids(given.ids);
  const DeviceArray<float> weights(given.weights);
  RoutedInput routing;
  routing.place = place;
  routing.ids = given.ids;
  routing.weights = given.weights;
  if (place == Place::kDevice) {
    routing.ids = {ids.get(), given.ids.size()};
    routing.weights = {weights.get(), given.weights.size()};
  }
  DeviceRowsBuffer device(rows.x.size());
  device.Set(rows.x);
  StepInfo info;
  info.rows = rows.rows;
  info.stream = device.stream();
  auto step = engine->BeginStep(info);
  REQUIRE_OK(step.status());
  const int64_t hidden = engine->model().layers[0].hidden;
  REQUIRE_OK(engine->ForwardRouted(*step, 0, {device.x(), DType::kF32, rows.rows, hidden, hidden},
                                   routing, {device.y(), DType::kF32, rows.rows, hidden, hidden}));
  const std::vector<float> y = device.Get();
  REQUIRE_OK(engine->EndStep(*step));
  return y;
}

TEST_CASE("routing from outside gives what the layer's own does") {
  for (const Model& model : kModels) {
    const auto source = std::make_shared<MixedSource>(model.layer(192, 80),
                                                      std::vector<std::string>{"bf16", "mxfp4"});
    for (const int64_t rows : {int64_t{2}, int64_t{20}, int64_t{170}}) {
      MixedStep step(*source, rows);
      Given given{std::vector<int32_t>(rows * kTopK), std::vector<float>(rows * kTopK)};
      source->RoutingOf(step.x, &given.ids, &given.weights);
      for (const char* strategy : {"resident", "on-demand"}) {
        CAPTURE(model.name, rows, strategy);
        const auto engine =
            Open(source, strategy, std::string(strategy) == "resident" ? 1.0 : 0.25, rows);
        for (const Place place : {Place::kHost, Place::kDevice}) {
          step.Check(Routed(engine.get(), step, given, place), 192, 2e-3);
        }
      }
    }
  }
}

TEST_CASE("a layer that routes by token id says so when it has none") {
  const auto source =
      std::make_shared<MixedSource>(ByTokenId(72, 40), std::vector<std::string>{"bf16"});
  const auto engine = Open(source, "resident", 1.0, 2);
  const MixedStep rows(*source, 2);
  DeviceRowsBuffer device(rows.x.size());
  const auto run = [&](absl::Span<const int32_t> ids) {
    std::vector<float> y;
    return std::string(
        RunDeviceStep(engine.get(), Phase::kDecode, rows.x, 2, &device, &y, ids).message());
  };
  CHECK(run({}).find("routes by token ids") != std::string::npos);
  const std::vector<int32_t> outside = {0, kVocabulary};
  CHECK(run(outside).find("token_ids[1] is 37: legal for layer 0 is 0 to 36") != std::string::npos);
  CHECK(run(rows.token_ids).empty());
}

}  // namespace
}  // namespace moert::test
