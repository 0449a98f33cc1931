// The gates' products: wide ones are cut into jobs, which changes no result.
#include <algorithm>
#include <random>
#include <vector>

#include "base/thread_pool.h"
#include "moert/router.h"
#include "route/gate_dots.h"
#include "tests/support/catch.h"

namespace moert {
namespace {

TEST_CASE("a gate's products: 16 lanes, the same bits for any number of tokens and processor") {
  std::mt19937 rng(11);
  std::normal_distribution<float> normal;
  for (const int64_t n : {1, 15, 16, 17, 100, 2048}) {
    std::vector<float> x(11 * n), gate(n);
    for (float& v : x) v = normal(rng);
    for (float& v : gate) v = normal(rng);
    for (const int64_t tokens : {1, 2, 4, 5, 11}) {
      INFO(tokens << " tokens of " << n);
      std::vector<float> best(2 * tokens, -1), plain = best;
      GateDots(x.data(), tokens, gate.data(), n, best.data(), 2);
      PlainGateDots(x.data(), tokens, gate.data(), n, plain.data(), 2);
      CHECK(best == plain);
      int wrong = 0;
      for (int64_t t = 0; t < tokens; ++t) {
        float lanes[16] = {}, tail = 0;
        for (int64_t i = 0; i < n; ++i) {
          const float product = x[t * n + i] * gate[i];
          (i < n / 16 * 16 ? lanes[i % 16] : tail) += product;
        }
        for (int width = 8; width > 0; width /= 2) {
          for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
        }
        wrong += best[2 * t] != lanes[0] + tail || best[2 * t + 1] != -1;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("gates of any width give the same scores on any number of threads") {
  constexpr int64_t kHidden = 1024;
  MoeModelSpec model;
  std::vector<std::vector<float>> weights;
  std::mt19937 rng(7);
  std::normal_distribution<float> normal(0, 0.05f);
  for (const int experts : {100, 3, 64}) {  // 4, 1 and 2 jobs a token
    MoeLayerSpec layer;
    layer.model_layer = static_cast<int>(model.layers.size());
    layer.hidden = kHidden;
    layer.intermediate = 16;
    layer.num_experts = experts;
    layer.routing.top_k = 2;
    model.layers.push_back(layer);
    weights.emplace_back(experts * kHidden);
    for (float& w : weights.back()) w = normal(rng);
  }
  std::vector<absl::Span<const float>> gates(weights.begin(), weights.end());
  const std::vector<absl::Span<const float>> biases(gates.size());
  std::vector<float> x(700 * kHidden);
  for (float& v : x) v = normal(rng);

  ThreadPoolOptions several;
  several.threads = 4;
  ThreadPoolOptions single;
  single.threads = 1;
  const auto pool = *CreateThreadPool(several);
  const auto alone = *CreateThreadPool(single);
  const auto shared = *Router::Create(&model, gates, biases, pool.get());
  const auto whole = *Router::Create(&model, gates, biases, alone.get());
  for (const int64_t tokens : {1, 5, 700}) {
    for (int layer = 0; layer < 3; ++layer) {
      const int next = (layer + 1) % 3;
      RoutingResult a, b;
      REQUIRE_OK(shared->Route(layer, x.data(), tokens, {}, {}, {}, true, &a));
      REQUIRE_OK(whole->Route(layer, x.data(), tokens, {}, {}, {}, true, &b));
      CHECK(a.ids == b.ids);
      CHECK(a.scores == b.scores);
      CHECK(a.next_scores == b.next_scores);
      std::vector<float> scores;
      REQUIRE_OK(whole->Score(next, x.data(), tokens, &scores));
      CHECK(a.next_scores == scores);
      for (const int64_t t : {int64_t{0}, tokens / 2, tokens - 1}) {  // as if it were alone
        REQUIRE_OK(whole->Route(layer, x.data() + t * kHidden, 1, {}, {}, {}, false, &b));
        CHECK(std::equal(b.ids.begin(), b.ids.end(), a.ids.begin() + 2 * t));
        CHECK(std::equal(b.weights.begin(), b.weights.end(), a.weights.begin() + 2 * t));
        CHECK(std::equal(b.scores.begin(), b.scores.end(),
                         a.scores.begin() + t * model.layers[layer].num_experts));
      }
      // The best expert is the one with the greatest product.
      for (int64_t t = 0; t < tokens; ++t) {
        int best = 0;
        double most = -1e9;
        for (int e = 0; e < model.layers[layer].num_experts; ++e) {
          double product = 0;
          for (int64_t i = 0; i < kHidden; ++i) {
            product += double{x[t * kHidden + i]} * weights[layer][e * kHidden + i];
          }
          if (product > most) best = e;
          most = std::max(most, product);
        }
        CHECK(a.ids[t * 2] == best);
      }
    }
  }
}

}  // namespace
}  // namespace moert
