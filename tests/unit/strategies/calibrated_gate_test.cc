// Predictions that say how likely they are.
#include "prefetch/calibrated_gate.h"

#include "tests/support/catch.h"

namespace moert {
namespace {

TEST_CASE("a curve learns how often predictions came true, by score") {
  HitCurve curve;
  const int twice = HitCurve::Bin(2), half = HitCurve::Bin(0.5);
  CHECK(half < twice);
  CHECK(curve.Probability(twice, 0.7) == Approx(0.7));
  for (int i = 0; i < 400; ++i) curve.Add(twice, i % 4 == 0);
  CHECK(curve.Probability(twice, 0.7) == Approx(0.25).margin(0.02));
  CHECK(curve.Probability(half, 0.3) == Approx(0.3));
  // Routing drifts: what was seen long ago counts less.
  for (int i = 0; i < 4000; ++i) curve.Add(twice, true);
  CHECK(curve.Probability(twice, 0.7) > 0.95);
  CHECK(HitCurve::Guess(4) > HitCurve::Guess(1));
  CHECK(HitCurve::Guess(1) > HitCurve::Guess(0.1));
}

TEST_CASE("candidates are ranked by the probability that some token uses them") {
  constexpr int kExperts = 4;
  MoeModelSpec model;
  for (int l = 0; l < 2; ++l) {
    MoeLayerSpec layer;
    layer.num_experts = kExperts;
    layer.routing.top_k = 1;
    model.layers.push_back(layer);
  }
  const auto gate = MakeCalibratedGate({});
  const std::vector<float> predicted = {.6f, .3f, .08f, .02f, .1f, .5f, .2f, .2f};
  const std::vector<uint8_t> usable(kExperts, 0);
  PrefetchSnapshot snapshot;
  snapshot.context.model = &model;
  snapshot.context.phase = Phase::kDecode;
  snapshot.target_layer = 1;
  snapshot.routing.tokens = 2;
  snapshot.predicted_scores = predicted;
  snapshot.target.usable = usable;
  auto ranked = gate->Rank(snapshot);
  REQUIRE(ranked.size() >= 2);
  CHECK(ranked[0].key.expert == 1);
  CHECK(ranked[1].key.expert == 0);
  for (const PrefetchCandidate& c : ranked) CHECK((c.probability > 0 && c.probability <= 1));

  // The gate's favourites are never used: they lose their probability.
  const std::vector<int32_t> ids = {3, 3}, counts = {0, 0, 0, 2};
  const std::vector<float> weights = {1, 1};
  RoutingView routing;
  routing.tokens = 2;
  routing.top_k = 1;
  routing.ids = ids;
  routing.weights = weights;
  routing.counts = counts;
  const float before = ranked[0].probability;
  for (int i = 0; i < 40; ++i) {
    PolicyContext context = snapshot.context;
    context.layer = 1;
    gate->Observe(LayerEvent::Routed(context, routing));
    ranked = gate->Rank(snapshot);
  }
  CHECK(ranked[0].key.expert == 3);
  for (const PrefetchCandidate& c : ranked) {
    if (c.key.expert == 1) CHECK(c.probability < before / 2);
  }
  // Nothing has been seen of the host's predictions.
  snapshot.resident_forward = true;
  ranked = gate->Rank(snapshot);
  CHECK(ranked[0].key.expert == 1);
  CHECK(ranked[0].probability == before);
  snapshot.predicted_scores = {};
  CHECK(gate->Rank(snapshot).empty());
}

}  // namespace
}  // namespace moert
