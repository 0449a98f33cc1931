// The worth of experts for slots: who leaves, and which prefetch is refused.
#include "store/residency/cache_policy.h"
#include "store/residency/use_estimate.h"
#include "tests/support/catch.h"

namespace moert {
namespace {

constexpr int kExperts = 6;

/// One token that uses `used`, with these scores.
struct Call {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<float> scores;
  std::vector<int32_t> counts = std::vector<int32_t>(kExperts, 0);
  RoutingView view;

  Call(std::vector<int32_t> used, std::vector<float> row)
      : ids(std::move(used)), scores(std::move(row)) {
    weights.assign(ids.size(), 0.5f);
    for (const int32_t e : ids) counts[e] = 1;
    view.tokens = 1;
    view.top_k = static_cast<int>(ids.size());
    view.ids = ids;
    view.weights = weights;
    view.scores = scores;
    view.counts = counts;
  }
};

struct Fixture {
  explicit Fixture(int layers = 2) {
    for (int l = 0; l < layers; ++l) {
      MoeLayerSpec layer;
      layer.num_experts = kExperts;
      layer.routing.top_k = 2;
      model.layers.push_back(layer);
    }
    context.model = &model;
    context.phase = Phase::kDecode;
    cache->Capacity({&model, 6, {}});
    for (int e = 0; e < kExperts; ++e) candidates.push_back({{0, e}});
  }
  MoeModelSpec model;
  PolicyContext context;
  std::unique_ptr<CachePolicy> cache =
      MakeCachePolicy({.kind = ResidencyRuleKind::kWorth,
                       .capacity = {CapacityRuleKind::kMeasured, -1, /*transient=*/0}});
  std::vector<VictimCandidate> candidates;
  void Route(const Call& call) { cache->Observe(LayerEvent::Routed(context, call.view)); }
  int Victim(int incoming, bool prefetch, float probability = -1, float hidden = 1) {
    VictimSnapshot snapshot{context, {0, incoming}, prefetch, candidates};
    snapshot.probability = probability;
    snapshot.hidden = hidden;
    return cache->Victim(snapshot);
  }
};

TEST_CASE("an expert that nearly made it is worth more than one that never came close") {
  UseEstimate use(kExperts);
  for (int i = 0; i < 50; ++i) use.Observe(Call({0, 1}, {.4f, .3f, .2f, .05f, .03f, .02f}).view);
  CHECK(use.Worth(0) > use.Worth(1));
  CHECK(use.Worth(1) > use.Worth(2));
  CHECK(use.Worth(2) > use.Worth(3));
  // Only what was ever chosen is in the order.
  CHECK(std::vector<int32_t>(use.Order().begin(), use.Order().end()) == std::vector<int32_t>{0, 1});
  // A change of use shows soon, and the long memory remembers.
  for (int i = 0; i < ExpertUse::kLatest; ++i) {
    use.Observe(Call({4, 5}, {.02f, .03f, .05f, .2f, .4f, .3f}).view);
  }
  CHECK(use.Worth(4) > use.Worth(2));
  CHECK(use.Worth(0) > use.Worth(3));
  CHECK(use.Order().size() == 4);
}

TEST_CASE("scores of no number leave no trace") {
  UseEstimate use(kExperts);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  use.Observe(Call({0, 1}, {nan, nan, nan, nan, nan, nan}).view);
  use.Observe(Call({0, 1}, {.4f, .3f, .2f, .05f, .03f, .02f}).view);
  for (int e = 0; e < kExperts; ++e) CHECK(use.Worth(e) == use.Worth(e));
  CHECK(use.Worth(0) > use.Worth(2));
}

TEST_CASE("the expert worth least leaves, a pending prefetch last") {
  Fixture f;
  const Call call({0, 1}, {.4f, .3f, .15f, .1f, .03f, .02f});
  for (int i = 0; i < 20; ++i) f.Route(call);
  CHECK(f.Victim(2, false) == 5);
  f.cache->Observe(LayerEvent::Inserted({0, 5}, /*prefetched=*/true));
  CHECK(f.Victim(2, false) == 4);
  // One prediction does not push out another.
  f.candidates = {{{0, 5}}};
  CHECK(f.Victim(4, true) == -1);
  CHECK(f.Victim(4, false) == 0);
  // The routing that it was meant for has passed.
  f.Route(call);
  CHECK(f.Victim(4, true) == 0);
}

TEST_CASE("a prefetch is refused where its victim is worth more than it saves") {
  Fixture f;
  const Call call({0, 1}, {.4f, .3f, .15f, .1f, .03f, .02f});
  for (int i = 0; i < 200; ++i) f.Route(call);  // nothing was inserted: nobody has to leave soon
  f.candidates = {{{0, 0}}};
  CHECK(f.Victim(5, true, 0.5f, 1) == -1);
  CHECK(f.Victim(5, true, 1.0f, 1) == 0);
  CHECK(f.Victim(5, true) == 0);  // by rank: the prefetcher has decided
  f.candidates = {{{0, 5}}};
  CHECK(f.Victim(0, true, 0.5f, 0.1f) == 0);
}

/// Layers whose slots are shared; what is held is told as a store would.
struct Shared {
  Fixture f;

  explicit Shared(int64_t pool, int layers = 2) : f(layers) {
    f.cache = MakeCachePolicy({.kind = ResidencyRuleKind::kWorth,
                               .shared_slots = true,
                               .capacity = {CapacityRuleKind::kMeasured}});
    f.cache->Capacity({&f.model, pool, {}});
  }
  void Hold(ExpertKey key) { f.cache->Observe(LayerEvent::Inserted(key, /*prefetched=*/false)); }
  void Route(int layer, const Call& call) {
    f.context.layer = layer;
    f.Route(call);
  }
};

TEST_CASE("the layer gives that holds the expert worth least") {
  Shared s(100);  // many slots: when a layer is called next matters little
  const Call concentrated({0, 1}, {.5f, .4f, .04f, .03f, .02f, .01f});
  const Call spread({0, 1}, {.2f, .2f, .16f, .16f, .14f, .14f});
  for (int i = 0; i < 40; ++i) {
    s.Route(0, concentrated);
    s.Route(1, spread);
  }
  CHECK(s.f.cache->Donor(false) == -1);  // nothing is held
  s.Hold({0, 0});
  CHECK(s.f.cache->Donor(false) == 0);
  s.Hold({1, 3});
  CHECK(s.f.cache->Donor(false) == 1);
  s.Hold({0, 5});
  CHECK(s.f.cache->Donor(false) == 0);
  s.f.cache->Observe(LayerEvent::Evicted({0, 5}));
  CHECK(s.f.cache->Donor(false) == 1);
}

TEST_CASE("layers give first whose misses arrive before a call waits for them") {
  constexpr int kLayers = 8;
  const Call first({0, 1}, {.4f, .3f, .15f, .1f, .03f, .02f});
  const Call other({0, 1}, {.4f, .3f, .14f, .09f, .04f, .03f});  // 5 is worth a half more
  // How a step's experts arrive: those of the first layer on demand, of `predicted` others not.
  const auto donor = [&](int predicted) {
    Shared s(1000, kLayers);
    for (int i = 0; i < 600; ++i) {
      for (int l = 0; l < kLayers; ++l) {
        s.Route(l, l == 0 ? first : other);
        s.f.cache->Observe(LayerEvent::Inserted({l, 4}, l > 0 && l <= predicted));
        s.f.cache->Observe(LayerEvent::Evicted({l, 4}));
      }
    }
    s.Hold({0, 5});
    s.Hold({3, 5});
    return s.f.cache->Donor(/*for_call=*/false);
  };
  CHECK(donor(7) == 3);
  CHECK(donor(0) == 0);
  CHECK(donor(3) == 0);  // most are waited for: the link is what counts
}

TEST_CASE("what the running call uses leaves for the call itself alone") {
  Shared s(100);
  const Call call({0, 1}, {.4f, .3f, .15f, .1f, .03f, .02f});
  for (int i = 0; i < 40; ++i) s.Route(1, call);
  s.Hold({1, 0});
  CHECK(s.f.cache->Donor(/*for_call=*/false) == -1);
  CHECK(s.f.cache->Donor(/*for_call=*/true) == 1);
  s.Route(0, call);  // that call is over
  CHECK(s.f.cache->Donor(/*for_call=*/false) == 1);
}

TEST_CASE("of equals the layer gives that is called last, where slots turn over in a step") {
  Shared s(2);
  const Call call({0, 1}, {.4f, .3f, .15f, .1f, .03f, .02f});
  for (int i = 0; i < 200; ++i) {
    for (int l = 0; l < 2; ++l) {
      s.Route(l, call);
      s.Hold({l, 4});
      s.f.cache->Observe(LayerEvent::Evicted({l, 4}));
    }
  }
  s.Hold({0, 4});
  s.Hold({1, 4});
  CHECK(s.f.cache->Donor(false) == 1);  // layer 0 comes next
  s.Route(0, call);
  CHECK(s.f.cache->Donor(false) == 0);
}

TEST_CASE("slots are not shared while a step uses clearly more experts than there are") {
  Shared s(4);
  const Call token({0, 1}, {.4f, .3f, .15f, .1f, .03f, .02f});
  const Call prompt({0, 1, 2, 3, 4, 5}, {.4f, .3f, .15f, .1f, .03f, .02f});
  CHECK(s.f.cache->Shares());
  for (int l = 0; l < 2; ++l) s.Route(l, token);
  CHECK(s.f.cache->Shares());
  for (int l = 0; l < 2; ++l) s.Route(l, prompt);
  CHECK(!s.f.cache->Shares());
  for (int l = 0; l < 2; ++l) s.Route(l, token);
  CHECK(s.f.cache->Shares());
}

}  // namespace
}  // namespace moert
