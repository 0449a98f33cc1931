// A cache that answers some misses low lends its blocks with nobody in a low version.
#include <algorithm>
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

TEST_CASE("who is there in a low version leaves when blocks are lent") {
  test::SyntheticShape shape{2, 8, 2, 16, 16, 0};
  shape.low_version = true;
  const test::SyntheticSource source(shape);
  VirtualClock clock;
  HardwareProfile profile;
  BudgetTracker budget{1 << 30};
  const std::unique_ptr<CachePolicy> lru = MakeCachePolicy({});
  std::vector<std::unique_ptr<BlockPool>> pools(1);
  pools[0] = *MakeRamBlockPool({1 << 16, 16}, 8, &budget);
  VersionedStore store(&source, {{0, 0}, {1, 0}}, std::move(pools),
                       MakeVirtualLink(&source, &clock, &profile), lru.get());
  const PolicyContext context{&source.model(), 0, Phase::kDecode, 0, 0, {}};
  REQUIRE(store.StartLoad({0, 3}, 0, LoadReason::kDemand, context));
  REQUIRE(store.StartLoad({0, 5}, 1, LoadReason::kDemand, context));
  std::vector<LentLayer> loans;
  REQUIRE(store.Lend(&loans));  // waits for both
  std::vector<int> there;
  size_t slots = 0;
  for (const LentLayer& loan : loans) {
    slots += loan.slots.size();
    for (const LentSlot& slot : loan.slots) {
      if (slot.expert >= 0) there.push_back(slot.expert);
    }
  }
  CHECK(there == std::vector<int>{3});
  CHECK(slots == 8);

  // The device has brought the expert since, as every one in the best version.
  loans[0].slots.back().expert = 5;
  loans[0].slots.back().last_used = ++loans[0].tick;
  store.TakeBack(loans);
  CHECK(store.Latest({0, 3}).version == 0);
  CHECK(store.Latest({0, 5}).version == 0);

  ServedCount served;
  served.lookups = 5;
  served.hits = 2;
  served.loads = 3;
  served.low_answers = served.low_loads = 2;
  store.CountServed(served);
  CHECK(store.stats().low_answers == 2);
  CHECK(store.stats().low_loads == 3);  // and the one from before
}

}  // namespace
}  // namespace moert
