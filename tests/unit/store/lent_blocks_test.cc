// Blocks that are lent: the device's rule (kernels/cuda/cache/serve_misses.h), executed here,
// decides as the store does, and the store goes on where the rule left off.
#include <algorithm>
#include <functional>
#include <iterator>
#include <random>
#include <tuple>
#include <utility>

#include "kernels/cuda/cache/serve_misses.h"
#include "plan/layer_planner.h"
#include "route/grouping.h"
#include "store/block_pool.h"
#include "store/residency/cache_policy.h"
#include "store/versioned_store.h"
#include "support/catch.h"
#include "support/served_call.h"
#include "support/synthetic_source.h"
#include "transfer/transfer_queue.h"

namespace moert {
namespace {

using cuda::KeyOfLeaving;
using cuda::LeavingKey;
using cuda::ServedCounts;
using cuda::ServedExpert;
using cuda::VictimRank;
using test::ServeCall;
using test::SyntheticShape;
using test::SyntheticSource;

constexpr int kLayers = 3, kExperts = 24, kTopK = 4;

SyntheticShape Shape() {
  SyntheticShape shape;
  shape.layers = kLayers;
  shape.experts = kExperts;
  shape.top_k = kTopK;
  shape.shared_intermediate = 0;
  return shape;
}

/// A store, and calls of it: by the host, as layer calls make them, or by the rule while it is
/// lent.
struct Cache {
  SyntheticSource source{Shape()};
  VirtualClock clock;
  HardwareProfile profile;
  BudgetTracker budget;
  std::unique_ptr<CachePolicy> policy;
  std::unique_ptr<VersionedStore> store;
  std::unique_ptr<LayerPlanner> planner;
  std::vector<LentLayer> loans;

  static constexpr int64_t kBlock = 1 << 16;
  explicit Cache(int slots, std::unique_ptr<CachePolicy> of = MakeCachePolicy({}))
      : budget(int64_t{kLayers} * kExperts * kBlock), policy(std::move(of)) {
    std::vector<std::unique_ptr<BlockPool>> pools(1);
    pools[0] = *MakeRamBlockPool({kBlock, kLayers * kExperts}, slots, &budget);
    store = std::make_unique<VersionedStore>(
        &source, std::vector<ServedVersion>{{0, 0}}, std::move(pools),
        MakeVirtualLink(&source, &clock, &profile), policy.get());
    planner = std::make_unique<LayerPlanner>(nullptr, &profile, store.get(), CpuMisses{});
  }

  void HostCall(int layer, const RoutingResult& routing) {
    const PolicyContext context{&source.model(), 0, Phase::kDecode, 0, layer, {}};
    LayerPlan plan;
    policy->Observe(LayerEvent::Routed(context, routing.view()));
    store->BeginLayerCall();
    planner->Plan(context, store->OpenStep(), routing, &plan);
    for (const int32_t e : plan.load) {
      REQUIRE(store->StartLoad({layer, e}, 0, LoadReason::kDemand, context,
                               {routing.counts[e], true, false}));
    }
    while (store->Wait()) {
    }
    for (const int32_t e : plan.load) store->Touch({layer, e}, routing.counts[e]);
    for (const int32_t e : plan.ready) store->Unpin({layer, e});
    store->EndLayerCall(context);
  }

  ServedCounts ServedCall(int layer, const RoutingResult& routing) {
    LentLayer& loan = loans[layer];
    std::vector<ServedExpert> rows(kExperts);
    for (size_t s = 0; s < loan.slots.size(); ++s) {
      const LentSlot& slot = loan.slots[s];
      if (slot.expert >= 0) rows[slot.expert] = {slot.last_used, slot.tokens, static_cast<int>(s)};
    }
    const std::vector<double> worth = Worth(&loan, routing);
    const ServedCounts call =
        ServeCall(routing.counts, static_cast<int>(loan.slots.size()), ++loan.tick, &rows,
                  worth.empty() ? nullptr : worth.data());
    for (LentSlot& slot : loan.slots) slot.expert = -1;
    for (int e = 0; e < kExperts; ++e) {
      if (rows[e].slot < 0) continue;
      LentSlot& slot = loan.slots[rows[e].slot];
      REQUIRE(slot.expert == -1);  // one expert a slot
      slot.expert = e;
      slot.last_used = rows[e].last_used;
      slot.tokens = rows[e].tokens;
    }
    return call;
  }

  /// The sums of the rule by average score, the call added.
  static std::vector<double> Sums(LentLayer* loan, const RoutingResult& routing) {
    const auto window = static_cast<int>(loan->scores.size() / kExperts);
    const int64_t row = ScoreSums::Row(loan->calls++, window);
    for (int e = 0; e < kExperts; ++e) {
      const float score =
          ScoreSums::Of(routing.scores.data() + e, kExperts, routing.tokens, routing.counts[e]);
      ScoreSums::Add(score, &loan->scores[row * kExperts + e], &loan->sums[e]);
    }
    return loan->sums;
  }
  /// The worth by the rules by worth and by average score, the call added; else empty.
  static std::vector<double> Worth(LentLayer* loan, const RoutingResult& routing) {
    if (!loan->sums.empty()) return Sums(loan, routing);
    std::vector<double> worth(loan->use.size());
    const auto call = ExpertUse::Call::Of(++loan->calls, routing.tokens);
    for (size_t e = 0; e < worth.size(); ++e) {
      double sum = 0;
      for (int64_t t = 0; t < routing.tokens; ++t) sum += routing.scores[t * kExperts + e];
      loan->use[e].Add(call, routing.counts[e], routing.top_k * sum);
      worth[e] = loan->use[e].Worth();
    }
    return worth;
  }

  std::vector<uint8_t> Usable(int layer) const {
    const auto usable = store->Layer(layer).usable;
    return {usable.begin(), usable.end()};
  }
};

/// A routing with some locality, of at most `most` distinct experts.
RoutingResult Draw(std::mt19937* rng, int rows, int most) {
  RoutingResult r;
  r.tokens = rows;
  r.top_k = kTopK;
  r.num_experts = kExperts;
  std::vector<int32_t> pool(kExperts);
  for (int e = 0; e < kExperts; ++e) pool[e] = e;
  // The first experts more often than the others.
  std::shuffle(pool.begin() + ((*rng)() % 3 == 0 ? 0 : most / 2), pool.end(), *rng);
  pool.resize(most);
  for (int t = 0; t < rows; ++t) {
    std::shuffle(pool.begin(), pool.end(), *rng);
    r.ids.insert(r.ids.end(), pool.begin(), pool.begin() + kTopK);
  }
  r.weights.assign(r.ids.size(), 1.0f / kTopK);
  r.scores.resize(static_cast<size_t>(rows) * kExperts);
  for (float& score : r.scores) score = static_cast<float>((*rng)() % 1000) / (500.0f * kExperts);
  GroupByExpert(&r);
  return r;
}

/// Calls by the host alone, and by host and rule in turn.
void CompareInTurns(const std::function<std::unique_ptr<CachePolicy>()>& policy) {
  std::mt19937 rng(7);
  for (const int slots : {kLayers * 9, kLayers * 12 + 2, kLayers * kExperts}) {
    Cache host(slots, policy()), both(slots, policy());
    bool lent = false;
    int64_t served = 0;
    for (int call = 0; call < 3000; ++call) {
      const int layer = call % kLayers;
      if (layer == 0 && rng() % 4 == 0) {
        if (lent) {
          both.store->TakeBack(both.loans);
        } else {
          REQUIRE(both.store->Lend(&both.loans));
        }
        lent = !lent;
      }
      const int rows = 1 + static_cast<int>(rng() % 4);
      const RoutingResult routing = Draw(&rng, rows, kTopK + static_cast<int>(rng() % 5));
      host.HostCall(layer, routing);
      if (!lent) {
        both.HostCall(layer, routing);
        CHECK(both.Usable(layer) == host.Usable(layer));
        continue;
      }
      const ServedCounts counts = both.ServedCall(layer, routing);
      served += counts.misses;
      std::vector<uint8_t> there(kExperts, 0);
      for (const LentSlot& slot : both.loans[layer].slots) {
        if (slot.expert >= 0) there[slot.expert] = 1;
      }
      REQUIRE(there == host.Usable(layer));
    }
    if (lent) both.store->TakeBack(both.loans);
    CHECK(served > 0);
    for (int l = 0; l < kLayers; ++l) CHECK(both.Usable(l) == host.Usable(l));
    CHECK(both.store->pool(0).taken() == host.store->pool(0).taken());
    for (int l = 0; l < kLayers; ++l) CHECK(both.store->held(l) == host.store->held(l));
  }
}

TEST_CASE("the device's rules decide as the store does, however often blocks change hands") {
  CompareInTurns([] { return MakeCachePolicy({}); });
  CompareInTurns([] { return MakeCachePolicy({.kind = ResidencyRuleKind::kWorth}); });
  for (const int window : {5, 64}) {
    CompareInTurns([window] {
      return MakeCachePolicy({.kind = ResidencyRuleKind::kAverageScore, .window = window});
    });
  }
}

TEST_CASE("experts leave by worth, then by their last use, its tokens and their index") {
  std::mt19937 rng(2);
  const double worths[] = {-1.5, -1e-300, -0.0, 0.0, 1e-300, 0.25, 3};
  for (int round = 0; round < 2000; ++round) {
    const int experts = 2 + static_cast<int>(rng() % 20);
    std::vector<ServedExpert> rows(experts);
    std::vector<double> worth(experts);
    std::vector<LeavingKey> keys(experts);
    std::vector<int> order;
    for (int e = 0; e < experts; ++e) {
      rows[e] = {static_cast<int64_t>(rng() % 3) << (rng() % 40), static_cast<int32_t>(rng() % 3),
                 static_cast<int32_t>(rng() % 4) - 1};
      worth[e] = worths[rng() % std::size(worths)];
      if (rows[e].slot < 0) continue;
      keys[e] = KeyOfLeaving(rows[e], worth[e]);
      order.push_back(e);
    }
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return std::tie(worth[a], rows[a].last_used, rows[a].tokens) <
             std::tie(worth[b], rows[b].last_used, rows[b].tokens);
    });
    for (size_t i = 0; i < order.size(); ++i) {
      REQUIRE(VictimRank(keys.data(), experts, order[i]) == static_cast<int>(i));
    }
  }
}

TEST_CASE("more experts than slots: nobody in use leaves, and no slot is given twice") {
  std::mt19937 rng(3);
  Cache cache(kLayers * 5);
  REQUIRE(cache.store->Lend(&cache.loans));
  for (int call = 0; call < 2000; ++call) {
    const int layer = call % kLayers;
    std::vector<uint8_t> before(kExperts, 0);
    for (const LentSlot& slot : cache.loans[layer].slots) {
      if (slot.expert >= 0) before[slot.expert] = 1;
    }
    const RoutingResult routing = Draw(&rng, 4, 4 + static_cast<int>(rng() % 20));
    const ServedCounts counts = cache.ServedCall(layer, routing);
    CHECK(counts.copies() <= 5);
    std::vector<uint8_t> there(kExperts, 0);
    for (const LentSlot& slot : cache.loans[layer].slots) {
      if (slot.expert >= 0) there[slot.expert] = 1;
    }
    int arrived = 0;
    for (int e = 0; e < kExperts; ++e) {
      if (routing.counts[e] > 0 && before[e] != 0) REQUIRE(there[e] == 1);
      arrived += there[e] != 0 && before[e] == 0;
    }
    REQUIRE(arrived == counts.copies());
  }
  cache.store->TakeBack(cache.loans);
}

TEST_CASE("a budget that changes between loans") {
  std::mt19937 rng(11);
  Cache cache(kLayers * 12);
  for (int round = 0; round < 200; ++round) {
    const int64_t slots = kLayers * (1 + static_cast<int64_t>(rng() % kExperts));
    REQUIRE_OK(cache.store->SetSlots(slots, slots * Cache::kBlock));
    REQUIRE(cache.store->Lend(&cache.loans));
    int64_t lent = 0;
    for (int l = 0; l < kLayers; ++l) {
      CHECK(std::ssize(cache.loans[l].slots) == cache.store->capacity(l));
      lent += std::ssize(cache.loans[l].slots);
    }
    CHECK(lent <= slots);
    for (int l = 0; l < kLayers; ++l) cache.ServedCall(l, Draw(&rng, 2, 6));
    cache.store->TakeBack(cache.loans);
    CHECK(cache.store->pool(0).taken() <= slots);
  }
}

TEST_CASE("nothing is lent while an expert is pinned") {
  Cache cache(kLayers * 4);
  std::mt19937 rng(1);
  const RoutingResult routing = Draw(&rng, 1, 4);
  cache.HostCall(0, routing);
  const ExpertKey key{0, routing.ids[0]};
  cache.store->Pin(key);
  CHECK(!cache.store->Lend(&cache.loans));
  cache.store->Unpin(key);
  CHECK(cache.store->Lend(&cache.loans));
}

}  // namespace
}  // namespace moert
