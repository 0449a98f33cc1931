// Recorded scores come out of gates of another width.
#include "cli/workload/recorded_gates.h"

#include <cmath>
#include <random>
#include <vector>

#include "tests/support/catch.h"

namespace moert::cli {
namespace {

MoeModelSpec Model(int layers, int experts, int64_t hidden) {
  MoeModelSpec model;
  for (int l = 0; l < layers; ++l) {
    MoeLayerSpec& layer = model.layers.emplace_back();
    layer.model_layer = l;
    layer.num_experts = experts;
    layer.hidden = hidden;
    layer.routing.kind = RoutingKind::kSoftmaxTopK;
    layer.routing.top_k = 2;
  }
  return model;
}

std::vector<float> Softmax(std::vector<double> logits) {
  double sum = 0;
  for (double& x : logits) sum += x = std::exp(x);
  std::vector<float> scores;
  for (const double x : logits) scores.push_back(static_cast<float>(x / sum));
  return scores;
}

std::vector<float> RandomScores(std::mt19937* random, int experts) {
  std::normal_distribution<double> normal(0, 2);
  std::vector<double> logits(experts);
  for (double& x : logits) x = normal(*random);
  return Softmax(logits);
}

// The logits that a gate makes of a hidden state.
std::vector<float> Scores(const RecordedGates& gates, int layer, const float* x, int64_t hidden) {
  const std::vector<float> gate = gates.Gate(layer);
  std::vector<double> logits(gate.size() / hidden);
  for (size_t i = 0; i < gate.size(); ++i) logits[i / hidden] += double{gate[i]} * x[i % hidden];
  return Softmax(logits);
}

TEST_CASE("a layer's gate and the next layer's give the recorded scores") {
  constexpr int kLayers = 3, kExperts = 20, kRows = 4;
  constexpr int64_t kHidden = 96;
  auto gates = RecordedGates::Create(Model(kLayers, kExperts, kHidden));
  REQUIRE_OK(gates.status());
  std::mt19937 random(1);
  for (int layer = 0; layer < kLayers; ++layer) {
    std::vector<float> scores, next;
    for (int t = 0; t < kRows; ++t) {
      for (const float s : RandomScores(&random, kExperts)) scores.push_back(s);
      for (const float s : RandomScores(&random, kExperts)) next.push_back(s);
    }
    const std::vector<float> x = gates->Hidden(layer, kRows, scores, next);
    REQUIRE(x.size() == kRows * kHidden);
    for (int t = 0; t < kRows; ++t) {
      const std::vector<float> here = Scores(*gates, layer, x.data() + t * kHidden, kHidden);
      for (int e = 0; e < kExperts; ++e) {
        CHECK(here[e] == Approx(scores[t * kExperts + e]).epsilon(1e-4));
      }
      if (layer + 1 == kLayers) continue;
      const std::vector<float> there = Scores(*gates, layer + 1, x.data() + t * kHidden, kHidden);
      for (int e = 0; e < kExperts; ++e) {
        CHECK(there[e] == Approx(next[t * kExperts + e]).epsilon(1e-4));
      }
    }
  }
}

TEST_CASE("what cannot be routed as recorded is refused") {
  CHECK(RecordedGates::Create(Model(3, 32, 96)).ok());
  const auto few = RecordedGates::Create(Model(4, 32, 96));
  CHECK_THAT(std::string(few.status().message()),
             Catch::Contains("128 experts in all layers") && Catch::Contains("channels, 96"));
  MoeModelSpec sigmoid = Model(1, 8, 64);
  sigmoid.layers[0].routing.kind = RoutingKind::kSigmoidGrouped;
  CHECK_THAT(std::string(RecordedGates::Create(sigmoid).status().message()),
             Catch::Contains("legal is routing by softmax_topk"));
  MoeModelSpec differing = Model(2, 8, 64);
  differing.layers[1].hidden = 128;
  CHECK_FALSE(RecordedGates::Create(differing).ok());
}

}  // namespace
}  // namespace moert::cli
