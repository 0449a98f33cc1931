// Layers with what today's models add, through a host's source and the whole engine on the CPU:
// against plain loops in double precision, at any budget the same bits.
#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "moert/engine.h"
#include "moert/source/host_source.h"
#include "support/catch.h"
#include "tests/support/reference_expert.h"

namespace moert {
namespace {

constexpr int kExperts = 6, kTopK = 2, kVocabulary = 10;
constexpr int64_t kHidden = 40, kWidth = 24, kShared = 16;

using Floats = std::vector<float>;

// Weights by what they are asked for: the same whoever asks.
float Value(const WeightRead& r, int64_t row, int64_t col) {
  uint64_t z = static_cast<uint64_t>(r.layer + 1) * 0x9e3779b97f4a7c15u +
               static_cast<uint64_t>(r.expert + 2) * 0xbf58476d1ce4e5b9u +
               static_cast<uint64_t>(r.part) * 0x94d049bb133111ebu +
               static_cast<uint64_t>(row * 4096 + col) * 0xd6e8feb86659fd93u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  const float value = static_cast<float>(static_cast<int>((z >> 33) % 2001) - 1000) / 1000.0f;
  return r.part == WeightPart::kExpertScales ? 1.0f + 0.5f * value : 0.5f * value;
}

int32_t HashExpert(int64_t token, int64_t slot) {
  return static_cast<int32_t>((token * 5 + slot * 2 + 1) % kExperts);
}

absl::Status Read(const WeightRead& r) {
  for (int64_t i = 0; i < r.rows; ++i) {
    for (int64_t j = 0; j < r.cols; ++j) {
      const int64_t at = i * r.cols + j;
      if (r.part == WeightPart::kHashExperts) {
        static_cast<int32_t*>(r.dst)[at] = HashExpert(r.first_row + i, j);
      } else {
        static_cast<float*>(r.dst)[at] = Value(r, r.first_row + i, j);
      }
    }
  }
  return absl::OkStatus();
}

// One matrix as the source keeps it: weights of experts are bf16.
Floats Matrix(int layer, int expert, WeightPart part, int64_t rows, int64_t cols) {
  const bool weight = part <= WeightPart::kDownProj;
  Floats m(static_cast<size_t>(rows * cols));
  WeightRead r{layer, expert, part, 0, 0, rows, cols, DType::kF32, m.data()};
  REQUIRE_OK(Read(r));
  for (float& v : m) {
    if (!weight) continue;
    uint32_t bits;
    std::memcpy(&bits, &v, 4);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    std::memcpy(&v, &bits, 4);
  }
  return m;
}

double Dot(const Floats& m, int64_t row, const std::vector<double>& x) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += m[static_cast<size_t>(row) * x.size() + i] * x[i];
  return sum;
}

std::vector<double> Expert(const MoeLayerSpec& spec, int layer, int expert,
                           const std::vector<double>& x) {
  const bool shared = expert == kSharedExpert;
  const int64_t width = shared ? spec.shared_intermediate : spec.intermediate;
  const auto bias = [&](WeightPart part, int64_t rows) {
    return spec.expert_bias && !shared ? Matrix(layer, expert, part, 1, rows)
                                       : Floats(static_cast<size_t>(rows));
  };
  const Floats gate = Matrix(layer, expert, WeightPart::kGateProj, width, spec.hidden);
  const Floats up = Matrix(layer, expert, WeightPart::kUpProj, width, spec.hidden);
  const Floats down = Matrix(layer, expert, WeightPart::kDownProj, spec.hidden, width);
  const Floats gate_bias = bias(WeightPart::kGateBias, width);
  const Floats up_bias = bias(WeightPart::kUpBias, width);
  const Floats down_bias = bias(WeightPart::kDownBias, spec.hidden);
  std::vector<double> h(static_cast<size_t>(width)), y(static_cast<size_t>(spec.hidden));
  for (int64_t i = 0; i < width; ++i) {
    const double u = Dot(up, i, x) + up_bias[static_cast<size_t>(i)];
    const double g = Dot(gate, i, x) + gate_bias[static_cast<size_t>(i)];
    h[static_cast<size_t>(i)] =
        test::ApplyActivation(spec.activation, spec.activation.gated ? g : u, u);
  }
  for (int64_t i = 0; i < spec.hidden; ++i) {
    y[static_cast<size_t>(i)] = Dot(down, i, h) + down_bias[static_cast<size_t>(i)];
  }
  return y;
}

std::vector<double> PlainLayer(const MoeLayerSpec& spec, int layer, int32_t token,
                               const std::vector<double>& x) {
  const RoutingSpec& r = spec.routing;
  const Floats router = Matrix(layer, 0, WeightPart::kRouter, kExperts, kHidden);
  const Floats bias = Matrix(layer, 0, WeightPart::kLogitBias, 1, kExperts);
  const Floats selection = Matrix(layer, 0, WeightPart::kSelectionBias, 1, kExperts);
  const Floats scales = Matrix(layer, 0, WeightPart::kExpertScales, 1, kExperts);
  std::vector<double> logits(kExperts), scores(kExperts);
  double sum = 0;
  for (int e = 0; e < kExperts; ++e) {
    logits[e] = Dot(router, e, x) + (r.logit_bias ? bias[e] : 0);
    sum += std::exp(logits[e]);
  }
  for (int e = 0; e < kExperts; ++e) {
    scores[e] = r.kind == RoutingKind::kSqrtSoftplusGrouped
                    ? std::sqrt(std::log1p(std::exp(logits[e])))
                : r.kind == RoutingKind::kTopKSigmoid ? 1 / (1 + std::exp(-logits[e]))
                                                      : std::exp(logits[e]) / sum;
  }
  std::vector<int> order(kExperts);
  for (int e = 0; e < kExperts; ++e) order[e] = e;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return scores[a] + (r.selection_bias ? selection[a] : 0) >
           scores[b] + (r.selection_bias ? selection[b] : 0);
  });
  if (r.hash_vocab > 0) {
    for (int j = 0; j < kTopK; ++j) order[j] = HashExpert(token, j);
  }
  double chosen = 0;
  for (int j = 0; j < kTopK; ++j) chosen += scores[order[j]];
  const bool renormalize = r.renormalize || r.kind == RoutingKind::kTopKSoftmax;
  std::vector<double> y(kHidden);
  for (int j = 0; j < kTopK; ++j) {
    double weight = scores[order[j]] / (renormalize ? chosen : 1) * r.scaling;
    if (r.expert_scales) weight *= scales[order[j]];
    std::vector<double> in = x;
    if (r.weight_input) {
      for (double& v : in) v *= weight;
      weight = 1;
    }
    const std::vector<double> out = Expert(spec, layer, order[j], in);
    for (int64_t i = 0; i < kHidden; ++i) y[i] += weight * out[i];
  }
  if (spec.shared_intermediate > 0) {
    const std::vector<double> out = Expert(spec, layer, kSharedExpert, x);
    for (int64_t i = 0; i < kHidden; ++i) y[i] += out[i];
  }
  return y;
}

MoeLayerSpec Plain() {
  MoeLayerSpec spec;
  spec.num_experts = kExperts;
  spec.hidden = kHidden;
  spec.intermediate = kWidth;
  spec.routing.top_k = kTopK;
  return spec;
}

struct Model {
  const char* name;
  MoeLayerSpec spec;
};

std::vector<Model> Models() {
  MoeLayerSpec gpt_oss = Plain(), llama4 = Plain(), deepseek4 = Plain(), gemma4 = Plain(),
               nemotron = Plain();
  gpt_oss.routing.kind = RoutingKind::kTopKSoftmax;
  gpt_oss.routing.logit_bias = gpt_oss.expert_bias = true;
  gpt_oss.activation.alpha = 1.702f;
  gpt_oss.activation.limit = 0.5f;
  gpt_oss.activation.up_offset = 1;
  llama4.routing.kind = RoutingKind::kTopKSigmoid;
  llama4.routing.weight_input = true;
  llama4.shared_intermediate = kShared;
  deepseek4.routing.kind = RoutingKind::kSqrtSoftplusGrouped;
  deepseek4.routing.renormalize = true;
  deepseek4.routing.scaling = 1.5f;
  deepseek4.routing.hash_vocab = kVocabulary;
  deepseek4.activation.limit = 0.75f;
  deepseek4.shared_intermediate = kShared;
  MoeLayerSpec deepseek4_late = deepseek4;
  deepseek4_late.routing.hash_vocab = 0;
  deepseek4_late.routing.selection_bias = true;
  gemma4.routing.renormalize = gemma4.routing.expert_scales = true;
  gemma4.activation = Activation::kGeluTanh;
  nemotron.activation = Activation::kRelu2;
  nemotron.activation.gated = false;
  nemotron.shared_intermediate = kShared;
  return {{"gpt-oss", gpt_oss},
          {"llama4", llama4},
          {"deepseek v4, by token id", deepseek4},
          {"deepseek v4", deepseek4_late},
          {"gemma4", gemma4},
          {"nemotron-h", nemotron}};
}

std::unique_ptr<ExpertSource> Source(const MoeLayerSpec& spec) {
  MoeModelSpec model;
  for (int l = 0; l < 2; ++l) {
    model.layers.push_back(spec);
    model.layers.back().model_layer = l;
  }
  HostWeights weights;
  weights.read = Read;
  weights.dtype = DType::kF32;
  auto source = MakeHostSource("test", model, weights);
  REQUIRE_OK(source.status());
  return *std::move(source);
}

EngineOptions Options(Budget budget) {
  EngineOptions options;
  options.budget = budget;
  options.threads = 1;
  options.max_tokens_per_forward = 4;
  options.activation = ActivationNumerics::kF32;
  return options;
}

std::unique_ptr<Engine> Open(const MoeLayerSpec& spec, Budget budget) {
  auto engine = Engine::Create(Source(spec), Options(budget));
  REQUIRE_OK(engine.status());
  return *std::move(engine);
}

Floats Forward(Engine* engine, const Floats& x, const std::vector<int32_t>& tokens) {
  const auto rows = static_cast<int64_t>(tokens.size());
  StepInfo info;
  info.rows = rows;
  info.token_ids = tokens;
  const auto step = engine->BeginStep(info);
  REQUIRE_OK(step.status());
  Floats y(x.size());
  for (int l = 1; l >= 0; --l) {  // what is returned is of layer 0
    REQUIRE_OK(engine->Forward(*step, l, {x.data(), DType::kF32, rows, kHidden, kHidden},
                               {y.data(), DType::kF32, rows, kHidden, kHidden}));
  }
  REQUIRE_OK(engine->EndStep(*step));
  return y;
}

TEST_CASE("layers of today's models compute what their papers say") {
  const Model m = GENERATE(from_range(Models()));
  INFO(m.name);
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  const std::vector<int32_t> tokens = {3, 0, 9, 3};
  Floats x(tokens.size() * kHidden);
  for (float& v : x) v = normal(rng);
  const auto engine = Open(m.spec, Budget::Fraction(1.0));
  const Floats y = Forward(engine.get(), x, tokens);
  for (size_t t = 0; t < tokens.size(); ++t) {
    const std::vector<double> row(x.begin() + t * kHidden, x.begin() + (t + 1) * kHidden);
    const std::vector<double> expected = PlainLayer(m.spec, 0, tokens[t], row);
    for (int64_t i = 0; i < kHidden; ++i) {
      CHECK(y[t * kHidden + i] == Approx(expected[i]).margin(2e-5));
    }
  }
  const auto smallest = Engine::Plan(*Source(m.spec), Options(Budget::Fraction(1.0)));
  REQUIRE_OK(smallest.status());
  const auto tight = Open(m.spec, Budget::Bytes(smallest->minimum_bytes));
  CHECK(Forward(tight.get(), x, tokens) == y);
}

TEST_CASE("a layer that routes by token id says so when it has none") {
  const auto engine = Open(Models()[2].spec, Budget::Fraction(1.0));
  Floats x(kHidden), y(kHidden);
  const auto forward = [&](absl::Span<const int32_t> ids) {
    StepInfo info;
    info.rows = 1;
    info.token_ids = ids;
    const auto step = engine->BeginStep(info);
    REQUIRE_OK(step.status());
    const absl::Status status =
        engine->Forward(*step, 0, {x.data(), DType::kF32, 1, kHidden, kHidden},
                        {y.data(), DType::kF32, 1, kHidden, kHidden});
    (void)engine->EndStep(*step);
    return std::string(status.message());
  };
  CHECK(forward({}).find("routes by token ids") != std::string::npos);
  const int32_t id = kVocabulary;
  CHECK(forward({&id, 1}).find("token_ids[0] is 10: legal for layer 0 is 0 to 9") !=
        std::string::npos);
}

}  // namespace
}  // namespace moert
