// The prefetcher admits some predictions, leaves others alone, and never keeps a demand load
// waiting.
#include "prefetch/layer_prefetcher.h"

#include "store/block_pool.h"
#include "store/residency/cache_policy.h"
#include "strategies/arc.h"
#include "tests/support/catch.h"
#include "tests/support/synthetic_source.h"
#include "transfer/link_pacer.h"
#include "transfer/transfer_queue.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

constexpr int kExperts = 8;

/// Answers what the test says, in that order.
struct Oracle final : PrefetchPolicy {
  std::vector<int> experts;
  PrefetchSnapshot last;
  std::vector<PrefetchCandidate> Rank(const PrefetchSnapshot& snapshot) override {
    last = snapshot;
    std::vector<PrefetchCandidate> ranked;
    for (const int e : experts) {
      ranked.push_back({{snapshot.target_layer, e}, 1.0f / static_cast<float>(ranked.size() + 1)});
    }
    return ranked;
  }
};

/// Layer calls as LayerRunner makes them, on a virtual link whose transfers take kTransfer.
struct Fixture {
  static constexpr int64_t kTransfer = 1000;
  SyntheticSource source{SyntheticShape{3, kExperts, 2, 16, 16, 0}};
  VirtualClock clock;
  HardwareProfile profile;
  LinkEstimate link{&profile};
  BudgetTracker budget;
  std::unique_ptr<CachePolicy> residency;
  std::unique_ptr<VersionedStore> store;
  Oracle oracle;
  std::unique_ptr<LayerPrefetcher> prefetcher;
  int64_t step = 0;

  explicit Fixture(int slots, std::unique_ptr<CachePolicy> policy = MakeCachePolicy({}),
                   bool cpu_offload = false)
      : budget(slots * Block()), residency(std::move(policy)) {
    profile.link_latency_ns = 0;
    profile.link_bytes_per_s = 1e9 * static_cast<double>(source.layout(0, 0, 0).bytes) / kTransfer;
    profile.decode_layer_ns = 2500;
    std::vector<std::unique_ptr<BlockPool>> pools(1);
    pools[0] = *MakeRamBlockPool({Block(), 3 * kExperts}, slots, &budget);
    store = std::make_unique<VersionedStore>(
        &source, std::vector<ServedVersion>{{0, 0}}, std::move(pools),
        MakeVirtualLink(&source, &clock, &profile), residency.get());
    store->Attach({&link});
    PrefetcherParts parts;
    parts.model = &source.model();
    parts.policy = &oracle;
    parts.profile = &profile;
    parts.link = &link;
    parts.store = store.get();
    parts.cpu_offload = cpu_offload;
    prefetcher = std::make_unique<LayerPrefetcher>(parts);
  }
  int64_t Block() const {
    return (source.layout(0, 0, 0).bytes + kRecordAlignment - 1) / kRecordAlignment *
           kRecordAlignment;
  }
  PolicyContext Context(int layer) const {
    PolicyContext context;
    context.model = &source.model();
    context.phase = Phase::kDecode;
    context.step = step;
    context.layer = layer;
    context.now_ns = clock.now_ns();
    return context;
  }
  bool Present(int layer, int e) const { return store->Latest({layer, e}).record != nullptr; }
  void Load(int layer, std::vector<int> experts) {
    for (const int e : experts) {
      REQUIRE(store->StartLoad({layer, e}, 0, LoadReason::kDemand, Context(layer)));
    }
    while (store->Wait()) {
    }
  }

  /// One call that uses `used`, predicts `predicted` for the next layer and computes `compute_ns`.
  /// Returns how long the misses took.
  int64_t Call(int layer, const std::vector<int>& used, std::vector<int> predicted,
               int64_t compute_ns) {
    oracle.experts = std::move(predicted);
    store->BeginLayerCall();
    store->Pump();
    const PolicyContext context = Context(layer);
    RoutingResult routing;
    routing.tokens = 1;
    routing.num_experts = kExperts;
    routing.counts.assign(kExperts, 0);
    for (const int e : used) routing.counts[e] = 1;
    prefetcher->Resolve(context, routing);
    residency->Observe(LayerEvent::Routed(context, routing.view()));
    std::vector<int> loading;
    for (const int e : used) {
      if (Present(layer, e)) {
        store->Touch({layer, e}, 1);
        store->Pin({layer, e});
      } else {
        loading.push_back(e);
      }
    }
    for (const int e : loading) {
      REQUIRE(store->StartLoad({layer, e}, 0, LoadReason::kDemand, context));
    }
    prefetcher->Predict(context, routing, clock.now_ns());
    const int64_t begin = clock.now_ns();
    for (const int e : loading) {
      while (!Present(layer, e)) REQUIRE(store->Wait());
      store->Touch({layer, e}, 1);
      store->Pin({layer, e});
    }
    const int64_t waited = clock.now_ns() - begin;
    prefetcher->WaitedForLoads(begin, clock.now_ns());
    for (const int e : used) store->Unpin({layer, e});
    store->EndLayerCall(context);
    clock.AdvanceTo(clock.now_ns() + compute_ns);
    prefetcher->EndCall(context, 1, clock.now_ns());
    if (layer == 2) ++step;
    return waited;
  }
};

TEST_CASE("as many prefetches as fit the window, the best ones") {
  Fixture f(24);
  f.profile.decode_layer_ns = 2100;
  f.Call(0, {0, 1}, {5, 4, 3, 2}, 2500);  // 2.1 transfers: a third would not be early enough
  CHECK(f.prefetcher->stats().issued == 2);
  f.store->Pump();
  CHECK(f.Present(1, 5));
  CHECK(f.Present(1, 4));
  CHECK(!f.Present(1, 3));
  CHECK(f.oracle.last.window_ns == 2100);
  CHECK(f.oracle.last.transfer_ns == 1000);
  // The prediction names three of four lookups; two were in the window.
  CHECK(f.Call(1, {5, 4, 3, 7}, {}, 2500) == 2000);
  CHECK(f.prefetcher->stats().predicted == 4);
  CHECK(f.prefetcher->stats().recalled == 3);
  CHECK(f.prefetcher->stats().recalled_in_window == 2);
}

TEST_CASE("the window is measured, without what was waited") {
  Fixture f(24);
  for (int s = 0; s < 60; ++s) {
    // Every step misses two experts in layer 0, which waits 2000 for them: no time to count on.
    const int a = 2 * s % kExperts;
    f.Call(0, {a, a + 1}, {6, 7}, 4000);
    f.Call(1, {6, 7}, {}, 3000);
    f.Call(2, {0}, {}, 3000);
  }
  f.Call(0, {0, 1}, {6, 7}, 4000);
  CHECK(f.oracle.last.window_ns == Approx(4000).epsilon(0.02));
  CHECK(f.prefetcher->outlook()[1].transfers == Approx(4).epsilon(0.02));
  CHECK(f.prefetcher->outlook()[1].recall == Approx(1).epsilon(0.05));
  CHECK(f.prefetcher->outlook()[0].recall == 0);
  CHECK(f.prefetcher->outlook()[0].transfers == 0);  // nothing is predicted, however long the pause
}

TEST_CASE("a demand load waits for what is on the link and for no other prefetch") {
  Fixture f(24);
  f.profile.decode_layer_ns = 100'000;  // a window that is far longer than what really happens
  f.Call(0, {0, 1}, {2, 3, 4, 5, 6, 7}, 1500);
  CHECK(f.prefetcher->stats().issued == 6);
  // All wrong but one that has not started: 500 more of the one on the link, then its own 1000
  // each.
  CHECK(f.Call(1, {0, 7}, {}, 2500) <= 500 + 2 * 1000);
  CHECK(f.prefetcher->stats().cancelled == 3);
  CHECK(f.prefetcher->stats().issued == 3);
  f.store->Pump();
  CHECK(!f.Present(1, 6));
  CHECK(f.store->stats().bytes_loaded == 6 * f.source.layout(0, 0, 0).bytes);
}

TEST_CASE("a prediction never replaces what it ranks higher") {
  Fixture f(12);  // four a layer
  f.Load(1, {0, 1, 2, 3});
  for (int l = 0; l < 3; l += 2) f.Load(l, {0, 1, 2, 3});
  f.profile.decode_layer_ns = 100'000;

  SECTION("predicted and there: only the others make way") {
    f.Call(0, {0, 1}, {4, 0, 1, 2, 5}, 9000);
    f.store->Pump();
    // 4 took the place of 3, which nobody predicted; 5, ranked last, found none.
    CHECK(f.Present(1, 4));
    CHECK(!f.Present(1, 3));
    CHECK(!f.Present(1, 5));
    for (const int e : {0, 1, 2}) CHECK(f.Present(1, e));
    CHECK(f.prefetcher->stats().issued == 1);
  }
  SECTION("a better one takes the place of the worst") {
    f.Call(0, {0, 1}, {4, 5, 3, 0, 1, 2}, 9000);
    f.store->Pump();
    for (const int e : {4, 5, 3, 0}) CHECK(f.Present(1, e));
    for (const int e : {1, 2}) CHECK(!f.Present(1, e));
  }
  SECTION("other layers keep what they have") {
    f.Call(0, {0, 1}, {4, 5, 6, 7}, 9000);
    f.store->Pump();
    for (const int e : {4, 5, 6, 7}) CHECK(f.Present(1, e));
    for (const int e : {0, 1, 2, 3}) {
      CHECK(f.Present(0, e));
      CHECK(f.Present(2, e));
    }
  }
}

TEST_CASE("layers without slots are served through the transient ones") {
  // Layer 0 holds its eight experts; the other two share four transient blocks.
  Fixture f(12, MakeCachePolicy({.capacity = {CapacityRuleKind::kShallowFirst, 1, 4}}));
  f.Load(0, {0, 1, 2, 3, 4, 5, 6, 7});
  f.profile.decode_layer_ns = 100'000;
  for (int s = 0; s < 20; ++s) {
    f.Call(0, {0, 1}, {s % 8, (s + 1) % 8}, 9000);
    CHECK(f.Call(1, {s % 8, (s + 1) % 8}, {(s + 2) % 8, (s + 3) % 8}, 9000) == 0);
    CHECK(f.store->held(1) == 0);
    CHECK(f.Call(2, {(s + 2) % 8, (s + 3) % 8}, {}, 9000) == 0);
    CHECK(f.store->held(2) == 0);
    CHECK(f.store->held(0) == 8);
  }
  CHECK(f.store->stats().prefetch_useful + f.prefetcher->stats().issued > 0);
  // More than the transient blocks hold: what is left is loaded, and layer 0 still is whole.
  f.Call(0, {0, 1}, {0, 1, 2, 3, 4, 5}, 9000);
  CHECK(f.Call(1, {0, 1, 2, 3, 4}, {}, 9000) == 1000);
  CHECK(f.store->held(0) >= 7);
}

TEST_CASE("a transfer longer than the window starts while such predictions are right") {
  Fixture f(6);                     // two a layer
  f.profile.decode_layer_ns = 600;  // of the 1000 a transfer takes: pays above 5 in 8 right
  f.Call(0, {0, 1}, {5, 4}, 600);
  CHECK(f.prefetcher->stats().issued == 1);  // the best one only
  CHECK(f.Call(1, {5}, {}, 600) == 400);
  // Wrong ones: each delays the miss by what is left of it, until there have been too many.
  int64_t issued = f.prefetcher->stats().issued;
  int tried = 0;
  for (int s = 0; s < 60; ++s) {
    f.Call(0, {0, 1}, {s % 2 == 0 ? 6 : 7}, 600);  // one replaces the other
    f.Call(1, {5}, {}, 600);
    tried += f.prefetcher->stats().issued > issued;
    issued = f.prefetcher->stats().issued;
  }
  CHECK(tried >= 1);
  CHECK(tried < 6);
  // Not started, and still counted: when predictions are right again, so are starts.
  for (int s = 0; s < 80; ++s) {
    f.Call(0, {0, 1}, {5 + s % 3}, 600);  // of three in turn, two slots never hold the next
    f.Call(1, {5 + s % 3}, {}, 600);
  }
  CHECK(f.prefetcher->stats().issued > issued + 5);
}

TEST_CASE("beside a CPU that computes what is late, late transfers only fill free slots") {
  for (const bool cpu_offload : {false, true}) {
    INFO(cpu_offload);
    Fixture f(6, MakeCachePolicy({}), cpu_offload);  // two a layer
    f.profile.decode_layer_ns = 900;                 // of the 1000 a transfer takes
    for (const int e : {5, 4}) {                     // free slots
      f.Call(0, {0, 1}, {e}, 900);
      f.Call(1, {e}, {}, 900);
    }
    CHECK(f.prefetcher->stats().issued == 2);
    CHECK(!f.store->HasFreeSlot(1));
    f.Call(0, {0, 1}, {6}, 900);
    CHECK(f.prefetcher->stats().issued == (cpu_offload ? 2 : 3));
    // Early transfers go as ever.
    Fixture early(6, MakeCachePolicy({}), cpu_offload);
    early.Load(1, {0, 1});
    early.Call(0, {0, 1}, {6}, 2500);
    CHECK(early.prefetcher->stats().issued == 1);
  }
}

TEST_CASE("poor guesses where the best ones are there do not discourage good ones") {
  Fixture f(9);  // three a layer
  f.profile.decode_layer_ns = 600;
  f.Call(0, {0, 1}, {}, 600);
  f.Call(1, {5, 4}, {}, 600);
  for (int s = 0; s < 60; ++s) {
    f.Call(0, {0, 1}, {5, 4, s % 2 == 0 ? 6 : 7}, 600);  // the third is wrong
    f.Call(1, {5, 4}, {}, 600);
  }
  const int64_t issued = f.prefetcher->stats().issued;
  f.Call(0, {0, 1}, {5, 4, 2}, 600);
  CHECK(f.prefetcher->stats().issued == issued);
  f.Call(1, {5, 4}, {}, 600);
  f.Call(0, {0, 1}, {3}, 600);
  CHECK(f.prefetcher->stats().issued == issued + 1);
}

TEST_CASE("illegal candidates are dropped and counted") {
  Fixture f(24);
  f.Call(0, {0}, {kExperts, -1, 3}, 2500);
  CHECK(f.prefetcher->stats().policy_fallbacks == 2);
  CHECK(f.prefetcher->stats().issued == 1);
}

}  // namespace
}  // namespace moert
