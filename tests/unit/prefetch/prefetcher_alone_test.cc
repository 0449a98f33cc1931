// A Prefetcher as a host uses it, on an ExpertStore.
#include <thread>

#include "moert/prefetcher.h"
#include "support/catch.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

constexpr int kLayers = 3, kExperts = 8;

/// Expects the same experts in the next layer.
struct Again final : PrefetchPolicy {
  int observed = 0;
  std::vector<PrefetchCandidate> Rank(const PrefetchSnapshot& snapshot) override {
    std::vector<PrefetchCandidate> ranked;
    for (int32_t e = 0; e < kExperts; ++e) {
      if (snapshot.routing.counts[e] > 0) ranked.push_back({{snapshot.target_layer, e}, 1.0f, 1});
    }
    return ranked;
  }
  void Observe(const LayerEvent&) override { ++observed; }
};

struct Fixture {
  std::unique_ptr<ExpertStore> store;
  Again policy;
  std::unique_ptr<Prefetcher> prefetcher;

  explicit Fixture(bool controlled = false) {
    auto source = std::make_shared<SyntheticSource>(
        SyntheticShape{.layers = kLayers, .experts = kExperts, .shared_intermediate = 0});
    const int64_t block = source->layout(0, 0, 0).bytes + kRecordAlignment;
    store = *ExpertStore::Create(source, {.budget_bytes = 12 * block});
    PrefetcherOptions options;
    options.profile.decode_layer_ns = 1'000'000'000;  // windows that everything fits
    options.controlled = controlled;
    prefetcher = *Prefetcher::Create(&policy, store.get(), options);
  }
  static RoutingResult Uses(const std::vector<int32_t>& experts) {
    RoutingResult routing;
    routing.tokens = 1;
    routing.top_k = static_cast<int>(experts.size());
    routing.num_experts = kExperts;
    routing.ids = experts;
    routing.weights.assign(experts.size(), 0.5f);
    routing.counts.assign(kExperts, 0);
    for (const int32_t e : experts) routing.counts[e] = 1;
    return routing;
  }
  void Call(int layer, const std::vector<int32_t>& experts) {
    const RoutingResult routing = Uses(experts);
    REQUIRE_OK(prefetcher->Observe(layer, Phase::kDecode, routing));
    std::vector<ExpertKey> keys;
    for (const int32_t e : experts) keys.push_back({layer, e});
    const auto lease = store->Fetch(keys);
    REQUIRE_OK(lease.status());
    REQUIRE_OK(prefetcher->Predict(layer, Phase::kDecode, routing));
  }
  /// Until what was begun for a layer has come.
  void Settle(int layer) const {
    while (true) {
      const std::vector<Residency> states = *store->residency(layer);
      if (std::count(states.begin(), states.end(), Residency::kArriving) == 0) return;
      std::this_thread::yield();
    }
  }
};

TEST_CASE("what a policy ranks is there when the next layer asks, and is accounted for") {
  Fixture f;
  f.Call(0, {1, 4});
  f.Settle(1);
  f.Call(1, {1, 5});
  f.prefetcher->EndStep();
  CHECK(f.policy.observed == 2);
  const PrefetchStats ahead = f.prefetcher->stats();
  CHECK(ahead.issued == 4);  // two for layer 1, two for layer 2
  CHECK(ahead.predicted == 2);
  CHECK(ahead.recalled == 1);
  CHECK(ahead.active == 1);
  const StoreStats store = f.store->stats();
  CHECK(store.hits_prefetched == 1);  // expert 1 of layer 1
  CHECK(store.loads == 3);
}

TEST_CASE("the last layer predicts the first one of the next step") {
  Fixture f;
  for (int layer = 0; layer < kLayers; ++layer) f.Call(layer, {layer, layer + 1});
  f.prefetcher->EndStep();
  f.Settle(0);
  const std::vector<Residency> first = *f.store->residency(0);
  CHECK(first[2] == Residency::kHigh);
  CHECK(first[3] == Residency::kHigh);
}

TEST_CASE("calls that make no sense are refused") {
  Fixture f;
  const RoutingResult routing = Fixture::Uses({0, 1});
  CHECK(Prefetcher::Create(nullptr, f.store.get(), {}).status().message() ==
        "policy: must not be null");
  CHECK(Prefetcher::Create(&f.policy, nullptr, {}).status().message() == "store: must not be null");
  CHECK(Prefetcher::Create(&f.policy, f.store.get(), {}).status().code() ==
        absl::StatusCode::kFailedPrecondition);
  CHECK(f.prefetcher->Predict(0, Phase::kDecode, routing).code() ==
        absl::StatusCode::kFailedPrecondition);
  CHECK(f.prefetcher->Observe(3, Phase::kDecode, routing).message() ==
        "layer 3: must be in [0, 3)");
  RoutingResult narrow = routing;
  narrow.counts.pop_back();
  CHECK(f.prefetcher->Observe(0, Phase::kDecode, narrow).message() ==
        "routing of layer 0: 8 experts, 7 counts; takes 8 of each");
}

TEST_CASE("a store outlives its prefetcher and may get another one") {
  Fixture f;
  f.Call(0, {1, 4});
  f.prefetcher = nullptr;
  REQUIRE_OK(f.store->Fetch({{{2, 7}}}).status());
  f.prefetcher = *Prefetcher::Create(&f.policy, f.store.get(), {});
  f.Call(0, {2, 3});
  CHECK(f.prefetcher->stats().predicted == 0);
}

}  // namespace
}  // namespace moert
