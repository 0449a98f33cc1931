// The next layer's gate selects these, in this order.
#include "prefetch/next_layer_gate.h"

#include "tests/support/catch.h"

namespace moert {
namespace {

struct Fixture {
  MoeModelSpec model;
  std::vector<float> scores;  // [T, 8]
  std::vector<uint8_t> usable = std::vector<uint8_t>(8, 0);
  PrefetchSnapshot snapshot;

  Fixture(Phase phase, std::vector<std::vector<float>> rows) {
    for (int l = 0; l < 3; ++l) {
      MoeLayerSpec layer;
      layer.num_experts = 8;
      layer.routing.top_k = 2;
      model.layers.push_back(layer);
    }
    for (const auto& row : rows) scores.insert(scores.end(), row.begin(), row.end());
    snapshot.context.model = &model;
    snapshot.context.phase = phase;
    snapshot.context.layer = 0;
    snapshot.target_layer = 1;
    snapshot.routing.tokens = static_cast<int64_t>(rows.size());
    snapshot.predicted_scores = scores;
    snapshot.target.usable = usable;
    snapshot.window_ns = 100;
    snapshot.transfer_ns = 20;
  }
  std::vector<int> Ranked(const NextLayerGateOptions& options) const {
    std::vector<int> experts;
    for (const PrefetchCandidate& c : MakeNextLayerGate(options)->Rank(snapshot)) {
      CHECK(c.key.layer == snapshot.target_layer);
      experts.push_back(c.key.expert);
    }
    return experts;
  }
};

TEST_CASE("the 75th percentile is a quarter of the experts") {
  CHECK(ExpertsAbovePercentile(32, 75) == 8);
  CHECK(ExpertsAbovePercentile(60, 75) == 15);
  CHECK(ExpertsAbovePercentile(64, 75) == 16);
  CHECK(ExpertsAbovePercentile(8, 50) == 4);
  CHECK(ExpertsAbovePercentile(8, 99) == 1);
  CHECK(ExpertsAbovePercentile(8, 0) == 7);
}

TEST_CASE("decode: a token's best scores, best first, never fewer than k") {
  const Fixture f(Phase::kDecode, {{.1f, .3f, .05f, .2f, .12f, .08f, .14f, .01f}});
  NextLayerGateOptions options;
  options.percentile = 50;
  CHECK(f.Ranked(options) == std::vector<int>{1, 3, 6, 4});
  options.percentile = 99;
  CHECK(f.Ranked(options) == std::vector<int>{1, 3});
  options.top = 5;
  CHECK(f.Ranked(options) == std::vector<int>{1, 3, 6, 4, 0});
  options.top = 100;
  CHECK(f.Ranked(options).size() == 8);
}

TEST_CASE("decode of several tokens: the union, by how many have it among their k") {
  const Fixture f(Phase::kDecode, {{.5f, .3f, .1f, .04f, .03f, .02f, .01f, 0},
                                   {.0f, .5f, .01f, .3f, .02f, .03f, .1f, .04f}});
  NextLayerGateOptions options;
  options.top = 3;
  // Expert 1 twice among the k, 0 and 3 once, 2 and 6 only selected.
  CHECK(f.Ranked(options) == std::vector<int>{1, 0, 3, 2, 6});
}

TEST_CASE("prefill: by popularity; the whole layer when what is missing of it fits the window") {
  Fixture f(Phase::kPrefill, {{.5f, .3f, .1f, .04f, .02f, .01f, .01f, .01f},
                              {.0f, .5f, .01f, .3f, .02f, .03f, .1f, .04f},
                              {.0f, .5f, .01f, .3f, .02f, .03f, .1f, .04f}});
  CHECK(f.Ranked({}) == std::vector<int>{1, 3, 0});
  // Three are there: five transfers of 20 fit 100.
  f.usable[5] = f.usable[6] = f.usable[7] = 1;
  f.snapshot.target.usable = f.usable;
  CHECK(f.Ranked({}) == std::vector<int>{1, 3, 0, 6, 2, 7, 5, 4});
  f.snapshot.window_ns = 99;
  CHECK(f.Ranked({}) == std::vector<int>{1, 3, 0});
}

TEST_CASE("candidates say how many tokens are expected") {
  const Fixture f(Phase::kPrefill, {{.5f, .3f, .1f, .04f, .03f, .02f, .01f, 0},
                                    {.0f, .5f, .01f, .3f, .02f, .03f, .1f, .04f}});
  const auto ranked = MakeNextLayerGate({})->Rank(f.snapshot);
  REQUIRE(ranked.size() == 3);
  CHECK(ranked[0].tokens == 2);
  CHECK(ranked[1].tokens == 1);
}

TEST_CASE("the wrap to the first layer is asked for") {
  Fixture f(Phase::kDecode, {{.1f, .3f, .05f, .2f, .12f, .08f, .14f, .01f}});
  f.snapshot.context.layer = 2;
  f.snapshot.target_layer = 0;
  CHECK(f.Ranked({}).empty());
  NextLayerGateOptions options;
  options.wrap = true;
  CHECK(f.Ranked(options) == std::vector<int>{1, 3});
  f.snapshot.predicted_scores = {};
  CHECK(f.Ranked(options).empty());
}

}  // namespace
}  // namespace moert
