// Every routing kind against the published formulas (tests/data/routing), and their properties.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "base/thread_pool.h"
#include "moert/router.h"
#include "nlohmann/json.hpp"
#include "support/paths.h"
#include "tests/support/catch.h"

namespace moert {
namespace {

struct Routed {
  std::vector<float> scores, weights;
  std::vector<int32_t> ids;
};

Routed Route(const RoutingSpec& spec, const std::vector<float>& logits,
             const std::vector<float>& bias = {}) {
  Routed r{std::vector<float>(logits.size()), std::vector<float>(spec.top_k),
           std::vector<int32_t>(spec.top_k, -1)};
  REQUIRE_OK(RouteToken(spec, logits, bias, r.scores.data(), r.ids.data(), r.weights.data()));
  return r;
}

RoutingKind KindByName(const std::string& name) {
  for (const RoutingKind kind : {RoutingKind::kSoftmaxTopK, RoutingKind::kTopKSoftmax,
                                 RoutingKind::kSigmoidGrouped, RoutingKind::kSparseMixer}) {
    if (RoutingKindName(kind) == name) return kind;
  }
  FAIL("unknown kind " << name);
  return {};
}

/// One spec of every kind, over 16 experts.
std::vector<RoutingSpec> EveryKind() {
  std::vector<RoutingSpec> specs(6);
  specs[0].top_k = 4;
  specs[1].top_k = 4;
  specs[1].renormalize = true;
  specs[2] = {RoutingKind::kTopKSoftmax, 3};
  specs[3] = {RoutingKind::kSigmoidGrouped, 4, true, 2.5f, 4, 2};
  specs[4] = {RoutingKind::kSparseMixer, 2};
  specs[5] = {RoutingKind::kSoftmaxTopK, 4, false, 16.0f, 8, 3};
  return specs;
}

std::vector<float> RandomLogits(int experts, std::mt19937* rng, float spread = 1.5f) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(experts);
  for (float& v : logits) v = normal(*rng);
  return logits;
}

TEST_CASE("every routing kind gives the experts and weights of the published formulas") {
  std::ifstream file(SourceDir() + "/tests/data/routing/routing.json");
  REQUIRE(file.good());
  const nlohmann::json cases = nlohmann::json::parse(file);
  REQUIRE(cases.size() >= 14);
  std::set<RoutingKind> seen;
  for (const nlohmann::json& c : cases) {
    const std::string name = c["name"];
    INFO(name);
    RoutingSpec spec;
    spec.kind = KindByName(c["kind"]);
    spec.top_k = c["top_k"];
    spec.renormalize = c["renormalize"];
    spec.scaling = c["scaling"];
    spec.num_groups = c["num_groups"];
    spec.top_groups = c["top_groups"];
    spec.sparsemixer_eps = c["sparsemixer_eps"];
    seen.insert(spec.kind);
    for (size_t t = 0; t < c["logits"].size(); ++t) {
      INFO("token " << t);
      const Routed r = Route(spec, c["logits"][t], c["bias"]);
      CHECK(r.ids == c["ids"][t].get<std::vector<int32_t>>());
      const std::vector<float> weights = c["weights"][t];
      for (int j = 0; j < spec.top_k; ++j) {
        CHECK(r.weights[j] == Approx(weights[j]).epsilon(2e-6));
      }
      if (t > 0) continue;
      const std::vector<float> scores = c["scores"];
      REQUIRE(r.scores.size() == scores.size());
      for (size_t e = 0; e < scores.size(); ++e) {
        CHECK(r.scores[e] == Approx(scores[e]).epsilon(2e-6));
      }
    }
  }
  CHECK(seen.size() == 4);
}

TEST_CASE("of equal scores the lower index wins, in every kind") {
  for (const RoutingSpec& spec : EveryKind()) {
    INFO(RoutingKindName(spec.kind) << " groups " << spec.num_groups);
    std::vector<int32_t> first(spec.top_k);
    std::iota(first.begin(), first.end(), 0);
    CHECK(Route(spec, std::vector<float>(16, 0.0f)).ids == first);
    CHECK(Route(spec, std::vector<float>(16, -2.5f)).ids == first);
    // Two equal peaks.
    std::vector<float> logits(16, 0.0f);
    logits[13] = logits[3] = 4;
    const Routed r = Route(spec, logits);
    CHECK(r.ids[0] == 3);
    CHECK(r.ids[1] == 13);
  }
}

TEST_CASE("equal groups: the lower index stays eligible") {
  RoutingSpec spec{RoutingKind::kSigmoidGrouped, 2, false, 1.0f, 4, 1};
  CHECK(Route(spec, std::vector<float>(8, 1.0f)).ids == std::vector<int32_t>{0, 1});
  // Group 2 wins by its sum of two although group 3 has the highest expert.
  CHECK(Route(spec, {0, 0, 0, 0, 2, 2, 2.5f, -4}).ids == std::vector<int32_t>{4, 5});
  // Under softmax routing the highest expert decides.
  spec.kind = RoutingKind::kSoftmaxTopK;
  CHECK(Route(spec, {0, 0, 0, 0, 2, 2, 2.5f, -4}).ids == std::vector<int32_t>{6, 7});
}

TEST_CASE("properties of ids, weights and scores over random logits") {
  std::mt19937 rng(11);
  for (const RoutingSpec& spec : EveryKind()) {
    INFO(RoutingKindName(spec.kind) << " groups " << spec.num_groups);
    for (int trial = 0; trial < 200; ++trial) {
      const std::vector<float> logits = RandomLogits(16, &rng);
      const Routed r = Route(spec, logits);
      CHECK(std::set<int32_t>(r.ids.begin(), r.ids.end()).size() == r.ids.size());
      // Scores rank as the logits do, and all but sigmoids are a distribution.
      for (int a = 0; a < 16; ++a) {
        for (int b = 0; b < 16; ++b) {
          if (logits[a] > logits[b]) REQUIRE(r.scores[a] >= r.scores[b]);
        }
      }
      const float total = std::accumulate(r.scores.begin(), r.scores.end(), 0.0f);
      if (spec.kind != RoutingKind::kSigmoidGrouped) CHECK(total == Approx(1));
      // Without a bias the chosen come in descending score, and weights follow their scores.
      for (int j = 1; j < spec.top_k; ++j) CHECK(r.scores[r.ids[j - 1]] >= r.scores[r.ids[j]]);
      const float mass = std::accumulate(r.weights.begin(), r.weights.end(), 0.0f);
      if (spec.renormalize || spec.kind == RoutingKind::kTopKSoftmax) {
        CHECK(mass == Approx(spec.scaling));
      } else if (spec.kind == RoutingKind::kSparseMixer) {
        for (const float w : r.weights) CHECK((w > 0 && w <= 1));
      } else {
        CHECK(mass <= spec.scaling * 1.00001f);
      }
      if (spec.num_groups == 1) continue;
      std::set<int32_t> groups;
      for (const int32_t e : r.ids) groups.insert(e / (16 / spec.num_groups));
      CHECK(static_cast<int>(groups.size()) <= spec.top_groups);
    }
  }
}

TEST_CASE("a permutation of the experts permutes the answer") {
  std::mt19937 rng(12);
  for (RoutingSpec spec : EveryKind()) {
    spec.num_groups = spec.top_groups = 1;
    const std::vector<float> logits = RandomLogits(16, &rng);
    std::vector<int32_t> order(16);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), rng);
    std::vector<float> permuted(16);
    for (int e = 0; e < 16; ++e) permuted[order[e]] = logits[e];
    const Routed a = Route(spec, logits), b = Route(spec, permuted);
    for (int j = 0; j < spec.top_k; ++j) {
      CHECK(b.ids[j] == order[a.ids[j]]);
      CHECK(b.weights[j] == Approx(a.weights[j]).epsilon(1e-5));
    }
  }
}

TEST_CASE("the selection bias selects and never weighs") {
  for (const RoutingKind kind : {RoutingKind::kSigmoidGrouped, RoutingKind::kSoftmaxTopK}) {
    RoutingSpec spec{kind, 2};
    spec.selection_bias = true;
    const std::vector<float> logits = {2, 1, 0, -1};
    const Routed plain = Route(spec, logits, {0, 0, 0, 0});
    const Routed biased = Route(spec, logits, {0, 0, 0, 5});
    CHECK(plain.ids == std::vector<int32_t>{0, 1});
    CHECK(biased.ids == std::vector<int32_t>{3, 0});
    CHECK(biased.weights[0] == biased.scores[3]);
    CHECK(biased.weights[1] == plain.weights[0]);
    CHECK(biased.scores == plain.scores);
  }
}

TEST_CASE("sparsemixer weighs a pick against the logits close to it") {
  RoutingSpec spec{RoutingKind::kSparseMixer, 2};
  spec.sparsemixer_eps = 0.1f;  // close: within a fifth of the larger magnitude
  Routed r = Route(spec, {10, 9, 5, 1});
  CHECK(r.ids == std::vector<int32_t>{0, 1});
  CHECK(r.weights[0] == Approx(1 / (1 + std::exp(-1.0f))));
  CHECK(r.weights[1] == 1.0f);  // the first is taken, 5 is far
  // A top of zero: only what equals it is close.
  r = Route(spec, {-1, 0, 0, -3});
  CHECK(r.ids == std::vector<int32_t>{1, 2});
  CHECK(r.weights == std::vector<float>{0.5f, 1.0f});
}

TEST_CASE("extreme and broken logits give distinct experts in range") {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::mt19937 rng(13);
  for (const RoutingSpec& spec : EveryKind()) {
    for (int trial = 0; trial < 300; ++trial) {
      std::vector<float> logits = RandomLogits(16, &rng);
      for (float& v : logits) {
        const float odd[] = {inf, -inf, nan, 3e38f, -3e38f, 0, 1e-40f, 100, -100};
        if (rng() % 3 == 0) v = odd[rng() % std::size(odd)];
      }
      const Routed r = Route(spec, logits);
      CHECK(std::set<int32_t>(r.ids.begin(), r.ids.end()).size() == r.ids.size());
      for (const int32_t e : r.ids) CHECK((e >= 0 && e < 16));
    }
    const Routed huge = Route(spec, std::vector<float>(16, -1e30f));
    for (const float w : huge.weights) CHECK(std::isfinite(w));
  }
}

TEST_CASE("an unknown routing kind is an error that lists the legal ones") {
  RoutingSpec spec;
  spec.kind = static_cast<RoutingKind>(9);
  float scores[2], weight;
  int32_t id;
  const absl::Status status = RouteToken(spec, {1.0f, 2.0f}, {}, scores, &id, &weight);
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(status.message()),
             Catch::Contains("kind 9") && Catch::Contains("sparsemixer"));
}

TEST_CASE("next-gate scores are those of the next layer on this input, in every kind") {
  const int hidden = 24, experts = 16, tokens = 3;
  std::mt19937 rng(14);
  const std::vector<float> bias = RandomLogits(experts, &rng, 0.2f);
  const std::vector<float> gate0 = RandomLogits(experts * hidden, &rng, 0.3f);
  const std::vector<float> gate1 = RandomLogits(experts * hidden, &rng, 0.3f);
  const std::vector<float> x = RandomLogits(tokens * hidden, &rng);
  auto pool = CreateThreadPool({});
  REQUIRE_OK(pool.status());
  for (const RoutingSpec& spec : EveryKind()) {
    INFO(RoutingKindName(spec.kind));
    MoeModelSpec model;
    for (int l = 0; l < 2; ++l) {
      MoeLayerSpec layer;
      layer.model_layer = l;
      layer.num_experts = experts;
      layer.hidden = hidden;
      layer.intermediate = 8;
      layer.routing = spec;
      model.layers.push_back(layer);
    }
    const bool biased = spec.kind == RoutingKind::kSigmoidGrouped;
    for (MoeLayerSpec& layer : model.layers) layer.routing.selection_bias = biased;
    REQUIRE_OK(model.Validate());
    const absl::Span<const float> b =
        biased ? absl::MakeConstSpan(bias) : absl::Span<const float>{};
    const auto router = *Router::Create(&model, {gate0, gate1}, {b, b}, pool->get());
    RoutingResult first, second;
    REQUIRE_OK(router->Route(0, x.data(), tokens, {}, {}, {}, true, &first));
    REQUIRE_OK(router->Route(1, x.data(), tokens, {}, {}, {}, true, &second));
    CHECK(first.next_scores == second.scores);
    CHECK(second.next_scores == first.scores);
    for (const float s : first.next_scores) CHECK((s >= 0 && s <= 1));
    CHECK(std::accumulate(first.counts.begin(), first.counts.end(), 0) == tokens * spec.top_k);
  }
}

}  // namespace
}  // namespace moert
