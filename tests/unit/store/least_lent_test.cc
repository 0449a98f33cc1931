// Blocks that every layer is lent at least: a token's, whatever the capacities and whoever shares.
#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "store/block_pool.h"
#include "store/residency/cache_policy.h"
#include "store/versioned_store.h"
#include "support/catch.h"
#include "support/synthetic_source.h"
#include "transfer/transfer_queue.h"

namespace moert {
namespace {

constexpr int kLayers = 3, kExperts = 12, kTopK = 2;

/// Deals, shares and gives up what the test says.
class TestPolicy final : public CachePolicy {
 public:
  std::vector<int> Capacity(const CapacitySnapshot& snapshot) override { return capacity; }
  int Victim(const VictimSnapshot& snapshot) override { return 0; }
  bool Shares() const override { return shares; }
  int Donor(bool for_call) override { return donor; }
  std::vector<int> capacity;  // empty: even
  bool shares = false;
  int donor = 0;
};

struct Cache {
  test::SyntheticSource source{test::SyntheticShape{kLayers, kExperts, kTopK, 16, 16, 0}};
  VirtualClock clock;
  HardwareProfile profile;
  BudgetTracker budget{1 << 30};
  TestPolicy policy;
  std::unique_ptr<VersionedStore> store;
  std::vector<LentLayer> loans;

  Cache(int slots, std::vector<int> capacity, bool shares = false) {
    policy.capacity = std::move(capacity);
    policy.shares = shares;
    std::vector<std::unique_ptr<BlockPool>> pools(1);
    pools[0] = *MakeRamBlockPool({1 << 16, kLayers * kExperts}, slots, &budget);
    store = std::make_unique<VersionedStore>(&source, std::vector<ServedVersion>{{0, 0}},
                                             std::move(pools),
                                             MakeVirtualLink(&source, &clock, &profile), &policy);
  }
  void Load(int layer, int expert) {
    const PolicyContext context{&source.model(), 0, Phase::kDecode, 0, layer, {}};
    policy.donor = layer;
    REQUIRE(store->StartLoad({layer, expert}, 0, LoadReason::kDemand, context));
    while (store->Wait()) {
    }
  }
  /// How many layers' fetches of so many ids are the device's: before blocks are lent, and then.
  std::pair<int, int> Served(int64_t ids) {
    int before = 0, then = 0;
    for (int l = 0; l < kLayers; ++l) {
      before += ServesFetch(ids, -1, store->capacity(l), store->LeastLent(l));
    }
    const std::vector<int> slots = Lend();
    for (int l = 0; l < kLayers; ++l) {
      then += ServesFetch(ids, slots[l], store->capacity(l), store->LeastLent(l));
    }
    store->TakeBack(loans);
    return {before, then};
  }
  /// Slots of every layer, lent.
  std::vector<int> Lend() {
    REQUIRE(store->Lend(&loans));
    std::vector<int> slots;
    for (const LentLayer& loan : loans) slots.push_back(static_cast<int>(loan.slots.size()));
    return slots;
  }
};

/// Whether no block is lent twice and every expert that is there is in one.
bool Whole(const Cache& cache) {
  std::set<int32_t> blocks;
  size_t lent = 0, experts = 0;
  int held = 0;
  for (int l = 0; l < kLayers; ++l) {
    held += cache.store->held(l);
    for (const LentSlot& slot : cache.loans[static_cast<size_t>(l)].slots) {
      blocks.insert(slot.block);
      ++lent;
      experts += slot.expert >= 0;
    }
  }
  return blocks.size() == lent && experts == static_cast<size_t>(held);
}

TEST_CASE("a layer that is dealt less than a token needs is lent that") {
  // As fate deals half of the slots where a window holds a token's transfers: the first layer is
  // filled, four are transient.
  const test::SyntheticSource source{test::SyntheticShape{kLayers, kExperts, kTopK, 16, 16, 0}};
  const std::vector<PrefetchOutlook> outlook = {{0, 0}, {0.9, 8}, {0.9, 8}};
  const ResidencyRule fate{.kind = ResidencyRuleKind::kWorth,
                           .shared_slots = true,
                           .capacity = {CapacityRuleKind::kMeasured}};
  const std::vector<int> dealt =
      MakeCachePolicy(fate)->Capacity({&source.model(), 18, outlook, nullptr});
  CHECK(dealt == std::vector<int>{12, 1, 1});
  Cache cache(18, dealt);
  for (int l = 0; l < kLayers; ++l) CHECK(cache.store->LeastLent(l) == kTopK);
  CHECK(cache.Lend() == std::vector<int>{12, 3, 3});
  cache.store->TakeBack(cache.loans);
  CHECK(cache.Served(kTopK) == std::pair(3, 3));
  CHECK(cache.Served(2 * kTopK) == std::pair(1, 1));  // of two tokens
  // With none to spare the first layer gives.
  Cache full(12, {12, 0, 0});
  for (int e = 0; e < kExperts; ++e) full.Load(0, e);
  CHECK(full.Lend() == std::vector<int>{8, 2, 2});
  CHECK(Whole(full));
  CHECK(full.store->stats().evictions == 4);
}

TEST_CASE("a layer that shares the slots and holds none is lent a token's") {
  Cache cache(18, {6, 6, 6}, /*shares=*/true);
  for (int e = 0; e < kExperts; ++e) cache.Load(0, e);
  for (int e = 0; e < 6; ++e) cache.Load(1, e);
  REQUIRE(cache.store->held(2) == 0);
  CHECK(cache.Lend() == std::vector<int>{10, 6, 2});
  CHECK(Whole(cache));
  cache.store->TakeBack(cache.loans);
  CHECK(cache.store->held(0) == 10);
  CHECK(cache.store->held(2) == 0);
}

TEST_CASE("where the blocks do not hold a token in every layer, capacities alone count") {
  Cache even(5, {});
  CHECK(even.store->LeastLent(0) == 0);
  CHECK(even.Lend() == std::vector<int>{2, 2, 1});
  even.store->TakeBack(even.loans);
  CHECK(even.Served(kTopK) == std::pair(2, 2));  // the last layer's are the host's
  Cache just(6, {6, 0, 0});
  for (int e = 0; e < 6; ++e) just.Load(0, e);
  CHECK(just.Lend() == std::vector<int>{2, 2, 2});
  just.store->TakeBack(just.loans);
  just.policy.capacity = {5, 0, 0};
  REQUIRE_OK(just.store->SetSlots(5, 5 << 16));
  CHECK(just.Lend() == std::vector<int>{5, 0, 0});
}

TEST_CASE("any capacities, shared or not, by whatever was loaded") {
  std::mt19937 random(5);
  for (int round = 0; round < 400; ++round) {
    const int slots = kLayers * kTopK + static_cast<int>(random() % 31);
    std::vector<int> capacity(kLayers, 0);
    for (int left = slots, tries = 0; left > 0 && tries < 60; ++tries) {
      int& of_layer = capacity[random() % kLayers];
      if (of_layer == kExperts || random() % 8 == 0) continue;
      ++of_layer;
      --left;
    }
    Cache cache(slots, capacity, random() % 2 == 0);
    CAPTURE(round, slots, capacity);
    const int most = 1 + static_cast<int>(random() % 60);
    for (int i = 0; i < most; ++i) {
      cache.Load(static_cast<int>(random() % kLayers), static_cast<int>(random() % kExperts));
    }
    const std::vector<int> lent = cache.Lend();
    CHECK(*std::min_element(lent.begin(), lent.end()) >= kTopK);
    CHECK(std::accumulate(lent.begin(), lent.end(), 0) == slots);
    CHECK(Whole(cache));
    cache.store->TakeBack(cache.loans);
    CHECK(cache.store->pool(0).taken() <= slots);
  }
}

}  // namespace
}  // namespace moert
