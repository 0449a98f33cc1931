// How slots are dealt: the paper's rule, miss curves against plain LRU caches, and the best of
// them.
#include "store/residency/capacity.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <random>

#include "tests/support/catch.h"

namespace moert {
namespace {

MoeModelSpec Model(int layers, int experts, int top_k) {
  MoeModelSpec model;
  for (int l = 0; l < layers; ++l) {
    MoeLayerSpec layer;
    layer.num_experts = experts;
    layer.routing.top_k = top_k;
    model.layers.push_back(layer);
  }
  return model;
}

std::vector<int> Shallow(const MoeModelSpec& model, int boundary, int transient, int64_t slots) {
  return ShallowFirst({boundary, transient}, {&model, slots, {}});
}

TEST_CASE("shallow layers are filled in order, deep ones share the rest") {
  const MoeModelSpec model = Model(5, 8, 2);
  CHECK(Shallow(model, 2, 0, 5) == std::vector<int>{5, 0, 0, 0, 0});
  CHECK(Shallow(model, 2, 0, 13) == std::vector<int>{8, 5, 0, 0, 0});
  CHECK(Shallow(model, 2, 0, 22) == std::vector<int>{8, 8, 2, 2, 2});
  CHECK(Shallow(model, 2, 0, 23) == std::vector<int>{8, 8, 3, 2, 2});
  CHECK(Shallow(model, 0, 0, 10) == std::vector<int>{2, 2, 2, 2, 2});
  CHECK(Shallow(model, 9, 0, 10) == std::vector<int>{8, 2, 0, 0, 0});
  CHECK(Shallow(model, 2, 4, 22) == std::vector<int>{8, 8, 1, 1, 0});
  // By default a sixth of the layers; twice the k of a token, at most a quarter of the slots.
  CHECK(Shallow(Model(24, 60, 4), -1, 0, 240) == [] {
    std::vector<int> expected(24, 0);
    std::fill(expected.begin(), expected.begin() + 4, 60);
    return expected;
  }());
  CHECK(Shallow(model, -1, -1, 8) == std::vector<int>{6, 0, 0, 0, 0});
  CHECK(Shallow(model, -1, -1, 24) == std::vector<int>{8, 3, 3, 3, 3});
}

TEST_CASE("a model that fits leaves nothing transient") {
  const MoeModelSpec model = Model(3, 8, 2);
  CHECK(Shallow(model, 1, 4, 24) == std::vector<int>{8, 8, 8});
  CHECK(Shallow(model, 1, 4, 23) == std::vector<int>{8, 7, 7});
  CHECK(Shallow(model, 1, 4, 0) == std::vector<int>{0, 0, 0});
}

TEST_CASE("a miss curve counts what LRU caches of every size would miss") {
  constexpr int kExperts = 12, kCalls = 400;
  std::mt19937_64 rng(7);
  MissCurve curve(kExperts);
  std::vector<std::deque<int>> caches(kExperts + 1);
  std::vector<int> misses(kExperts + 1, 0);
  // Full from the start, in index order, of what was never requested.
  for (int c = 0; c <= kExperts; ++c) {
    for (int e = 0; e < c; ++e) caches[c].push_back(e);
  }
  std::vector<bool> seen(kExperts, false);
  for (int i = 0; i < kCalls; ++i) {
    std::vector<int32_t> counts(kExperts, 0);
    std::vector<int> requested;
    while (requested.size() < 3) {
      const int e = static_cast<int>(std::min(rng() % kExperts, rng() % kExperts));
      if (counts[e]++ == 0) requested.push_back(e);
    }
    curve.Observe(counts, {});
    // Most recent first; experts of one call by popularity, of equals as they were.
    for (int c = 0; c <= kExperts; ++c) {
      std::deque<int>& lru = caches[c];
      for (const int e : requested) {
        misses[c] += seen[e] && std::count(lru.begin(), lru.end(), e) == 0;
      }
    }
    for (const int e : requested) seen[e] = true;
    std::vector<int> order = requested;
    std::deque<int>& all = caches[kExperts];
    const auto depth = [&](int e) { return std::find(all.begin(), all.end(), e) - all.begin(); };
    std::sort(order.begin(), order.end(), [&](int a, int b) {
      return counts[a] != counts[b] ? counts[a] > counts[b] : depth(a) < depth(b);
    });
    std::deque<int> next(order.begin(), order.end());
    for (const int e : all) {
      if (counts[e] == 0) next.push_back(e);
    }
    for (int c = 0; c <= kExperts; ++c) caches[c].assign(next.begin(), next.begin() + c);
  }
  REQUIRE(curve.calls() == kCalls);
  const std::vector<double> all = curve.Misses(MissCurve::kAll, false);
  const std::vector<double> one = curve.Misses(MissCurve::kOneHalf, false);
  const std::vector<double> other = curve.Misses(MissCurve::kOtherHalf, false);
  for (int c = 0; c <= kExperts; ++c) {
    CHECK(all[c] == Approx(static_cast<double>(misses[c]) / kCalls).margin(1e-9));
    CHECK(all[c] == Approx((one[c] + other[c]) / 2).margin(0.05));
  }
  CHECK(one != other);
  CHECK(all[0] == Approx(3 - static_cast<double>(kExperts) / kCalls));
  CHECK(all[kExperts] == Approx(0).margin(1e-12));
}

TEST_CASE("what a prediction hides is limited by its recall and its window") {
  std::vector<int32_t> first(8, 0), second(8, 0);
  for (const int e : {0, 1, 2, 3}) first[e] = 1;
  for (const int e : {4, 5, 6, 7}) second[e] = 1;
  const auto exposed = [&](PrefetchOutlook outlook) {
    MissCurve curve(8);
    // All four miss from the third call on, the first two are not counted.
    for (int i = 0; i < 4; ++i) curve.Observe(i % 2 == 0 ? first : second, outlook);
    CHECK(curve.Misses(MissCurve::kAll, false)[4] == Approx(2));
    return 2 * curve.Misses(MissCurve::kAll, true)[4];
  };
  CHECK(exposed({}) == Approx(4));
  CHECK(exposed({0.75, 100}) == Approx(1));
  CHECK(exposed({0.75, 2.9}) == Approx(2));
  CHECK(exposed({1, 0.9}) == Approx(4));
}

double Cost(const std::vector<std::vector<double>>& curves, const std::vector<int>& capacity) {
  double sum = 0;
  for (size_t l = 0; l < curves.size(); ++l) sum += curves[l][capacity[l]];
  return sum;
}

TEST_CASE("slots go where they spare most: the optimum of convex curves") {
  std::mt19937_64 rng(2);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::vector<double>> curves(3);
    for (auto& curve : curves) {
      std::vector<double> gains(6);
      for (double& gain : gains) gain = static_cast<double>(rng() % 100);
      std::sort(gains.rbegin(), gains.rend());
      curve = {1000};
      for (const double gain : gains) curve.push_back(curve.back() - gain);
    }
    const int slots = static_cast<int>(rng() % 19);
    double best = 1e9;
    for (int a = 0; a <= 6; ++a) {
      for (int b = 0; b <= 6; ++b) {
        for (int c = 0; c <= 6; ++c) {
          if (a + b + c <= slots) best = std::min(best, Cost(curves, {a, b, c}));
        }
      }
    }
    const std::vector<int> dealt = DealByCurves(curves, slots);
    CHECK(std::accumulate(dealt.begin(), dealt.end(), 0) == slots);
    CHECK(Cost(curves, dealt) == Approx(best));
  }
}

TEST_CASE("slots jump over a stretch without gain") {
  // Layer 0 gains nothing before its third slot, which is worth more than all of layer 1.
  const std::vector<std::vector<double>> curves = {{10, 10, 10, 1}, {10, 9, 8, 7}};
  CHECK(DealByCurves(curves, 3) == std::vector<int>{3, 0});
  CHECK(DealByCurves(curves, 5) == std::vector<int>{3, 2});
}

/// Skewed routing over `working_set` experts of each layer.
std::vector<int> Settled(SlotDealer* rule, const MoeModelSpec& model,
                         const std::vector<PrefetchOutlook>& outlook, int64_t slots,
                         const std::vector<int>& working_set) {
  std::vector<int> capacity = rule->Capacity({&model, slots, outlook});
  std::mt19937_64 rng(9);
  PolicyContext context;
  context.model = &model;
  context.phase = Phase::kDecode;
  for (int step = 0; step < 600; ++step) {
    context.step = step;
    const std::vector<int> dealt = rule->Capacity({&model, slots, outlook, &context});
    if (!dealt.empty()) capacity = dealt;
    for (int l = 0; l < model.num_layers(); ++l) {
      context.layer = l;
      std::vector<int32_t> counts(model.layers[l].num_experts, 0);
      for (int i = 0; i < model.layers[l].routing.top_k; ++i) {
        counts[std::min(rng() % working_set[l], rng() % working_set[l])] = 1;
      }
      RoutingView routing;
      routing.counts = counts;
      rule->Observe(LayerEvent::Routed(context, routing));
    }
  }
  return capacity;
}

TEST_CASE("measured capacities follow the misses that predictions cannot hide") {
  const MoeModelSpec model = Model(4, 16, 2);
  const std::vector<int> everywhere(4, 16);
  const auto rule = MakeMeasuredCapacity(0);
  SECTION("no prefetch, equal layers: even") {
    const std::vector<int> capacity = Settled(rule.get(), model, {}, 32, everywhere);
    for (const int c : capacity) CHECK(std::abs(c - 8) <= 3);
  }
  SECTION("a window that holds every miss: the layer without predictions gets its slots first") {
    const std::vector<PrefetchOutlook> outlook = {{}, {0.95, 9}, {0.95, 9}, {0.95, 9}};
    CHECK(Settled(rule.get(), model, outlook, 32, everywhere)[0] == 16);
  }
  SECTION("a window that holds nothing: recall does not help") {
    const std::vector<PrefetchOutlook> outlook = {{}, {0.95, 0.9}, {0.95, 0.9}, {0.95, 0.9}};
    for (const int c : Settled(rule.get(), model, outlook, 32, everywhere)) {
      CHECK(std::abs(c - 8) <= 3);
    }
  }
  SECTION("a layer that uses few experts gets those and no more") {
    const std::vector<int> capacity = Settled(rule.get(), model, {}, 32, {3, 16, 16, 16});
    CHECK(capacity[0] == 3);
    CHECK(std::accumulate(capacity.begin(), capacity.end(), 0) == 32);
  }
}

TEST_CASE("transient slots are what the window holds, and what a token needs where a layer lacks") {
  const MoeModelSpec model = Model(4, 16, 2);
  const std::vector<int> everywhere(4, 16);
  const auto sum = [&](std::vector<PrefetchOutlook> outlook, int64_t slots) {
    const auto rule = MakeMeasuredCapacity(-1);
    const std::vector<int> capacity = Settled(rule.get(), model, outlook, slots, everywhere);
    return std::accumulate(capacity.begin(), capacity.end(), int64_t{0});
  };
  CHECK(sum({}, 32) == 32);
  CHECK(sum({{}, {0.9, 1.5}, {0.9, 1.5}, {0.9, 1.5}}, 32) == 31);
  // A layer that nothing predicts has no window to fill.
  CHECK(sum({{0, 12}, {0.9, 0.3}, {0.9, 0.3}, {0.9, 0.3}}, 32) == 32);
  CHECK(sum({{}, {0.9, 100}, {0.9, 100}, {0.9, 100}}, 60) == 56);
  // Deep layers get nothing: two more for the token itself.
  CHECK(sum({{}, {1, 100}, {1, 100}, {1, 100}}, 16) == 10);
  CHECK(sum({}, 64) == 64);
}

TEST_CASE("what a few misses say of layers that are alike is chance: even slots stay") {
  const MoeModelSpec model = Model(8, 64, 4);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const auto rule = MakeMeasuredCapacity(-1);
    constexpr int64_t kSlots = 8 * 48;
    const std::vector<int> even = rule->Capacity({&model, kSlots, {}});
    std::vector<int> capacity = even;
    std::mt19937_64 rng(seed);
    PolicyContext context;
    context.model = &model;
    context.phase = Phase::kDecode;
    for (int step = 0; step < 200; ++step) {
      context.step = step;
      const std::vector<int> dealt = rule->Capacity({&model, kSlots, {}, &context});
      if (!dealt.empty()) capacity = dealt;
      for (int l = 0; l < 8; ++l) {
        context.layer = l;
        std::vector<int32_t> counts(64, 0);
        for (int i = 0; i < 4; ++i) counts[std::min({rng() % 64, rng() % 64, rng() % 64})] = 1;
        RoutingView routing;
        routing.counts = counts;
        rule->Observe(LayerEvent::Routed(context, routing));
      }
    }
    CHECK(capacity == even);
  }
}

TEST_CASE("slots are dealt anew when predictions stop hiding misses, and when they begin to") {
  const MoeModelSpec model = Model(4, 16, 2);
  const std::vector<PrefetchOutlook> hiding = {{}, {0.95, 9}, {0.95, 9}, {0.95, 9}};
  const auto rule = MakeMeasuredCapacity(0);
  REQUIRE(Settled(rule.get(), model, hiding, 32, {16, 16, 16, 16})[0] == 16);
  CHECK(rule->Capacity({&model, 32, {}}) == std::vector<int>{8, 8, 8, 8});
  CHECK(rule->Capacity({&model, 32, hiding})[0] >= 14);
}

TEST_CASE("the shallow boundary that layer accuracies give") {
  CHECK(ShallowBoundary({}) == 1);
  CHECK(ShallowBoundary(std::vector<double>{0}) == 1);
  CHECK(ShallowBoundary(std::vector<double>{0, .8, .8, .8, .8}) == 1);
  CHECK(ShallowBoundary(std::vector<double>{0, .6, .7, .79, .8, .82, .81, .8}) == 3);
  // A dip further down is not shallow; noise is no dip.
  CHECK(ShallowBoundary(std::vector<double>{0, .5, .8, .4, .8, .82}) == 2);
  CHECK(ShallowBoundary(std::vector<double>{0, .79, .8, .81, .8}) == 1);
}

}  // namespace
}  // namespace moert
