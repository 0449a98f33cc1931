// A store whose residency policy shares the slots among layers.

#include "store/block_pool.h"
#include "store/versioned_store.h"
#include "support/catch.h"
#include "support/synthetic_source.h"
#include "transfer/transfer_queue.h"

namespace moert {
namespace {

/// Gives up what the test says: the first candidate of `donor`.
class TestPolicy final : public CachePolicy {
 public:
  int Victim(const VictimSnapshot& snapshot) override { return 0; }
  bool Shares() const override { return shares; }
  int Donor(bool for_call) override { return for_call ? own : donor; }
  bool shares = true;
  int own = 0;    // for the call that runs
  int donor = 0;  // for anybody else
};

constexpr int kLayers = 3, kExperts = 6, kSlots = 6;

struct Fixture {
  test::SyntheticSource source{test::SyntheticShape{kLayers, kExperts, 2, 16, 16, 0}};
  VirtualClock clock;
  HardwareProfile profile;
  BudgetTracker budget{1 << 30};
  TestPolicy policy;
  std::unique_ptr<VersionedStore> store;
  PolicyContext context;

  Fixture() {
    std::vector<std::unique_ptr<BlockPool>> pools(1);
    const int64_t bytes =
        (source.layout(0, 0, 0).bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
    pools[0] = *MakeRamBlockPool({bytes, kLayers * kExperts}, kSlots, &budget);
    store = std::make_unique<VersionedStore>(&source, std::vector<ServedVersion>{{0, 0}},
                                             std::move(pools),
                                             MakeVirtualLink(&source, &clock, &profile), &policy);
    context.model = &source.model();
    context.phase = Phase::kDecode;
  }
  bool Load(int layer, int expert, const LoadHint& hint = {},
            LoadReason reason = LoadReason::kDemand) {
    context.layer = layer;
    const bool begun = store->StartLoad({layer, expert}, 0, reason, context, hint);
    while (store->Wait()) {
    }
    return begun;
  }
  int Held() const { return static_cast<int>(store->pool(0).taken()); }
};

TEST_CASE("a layer may hold all slots, and keeps them when its call ends") {
  Fixture f;
  for (int e = 0; e < kSlots; ++e) {
    CHECK(f.store->HasFreeSlot(0));
    CHECK(f.Load(0, e));
  }
  CHECK(!f.store->HasFreeSlot(1));
  f.store->EndLayerCall(f.context);
  CHECK(f.store->held(0) == kSlots);
}

TEST_CASE("who comes takes a place of the layer that the policy names") {
  Fixture f;
  for (int e = 0; e < 3; ++e) {
    REQUIRE(f.Load(0, e));
    REQUIRE(f.Load(1, e));
  }
  f.policy.own = 1;
  CHECK(f.Load(2, 0));
  CHECK(f.store->held(0) == 3);
  CHECK(f.store->held(1) == 2);
  f.policy.donor = 0;
  CHECK(f.Load(2, 1, {}, LoadReason::kPrefetch));
  CHECK(f.store->held(0) == 2);
  CHECK(f.Held() == kSlots);
  f.policy.donor = -1;
  CHECK(!f.Load(2, 2, {}, LoadReason::kPrefetch));  // nobody waits for it
}

TEST_CASE("a call waits for its own blocks where enough of it is in flight") {
  Fixture f;
  for (int e = 0; e < 3; ++e) {
    REQUIRE(f.Load(0, e));
    REQUIRE(f.Load(1, e));
  }
  for (int e = 0; e < 3; ++e) f.store->Pin({0, e});  // the call of layer 0 still reads them
  f.policy.own = 0;
  f.policy.donor = 1;
  LoadHint hint;
  hint.can_wait = hint.spare_popular = true;
  CHECK(!f.Load(0, 4, hint));
  CHECK(f.store->held(1) == 3);
  hint.spare_popular = false;
  CHECK(f.Load(0, 4, hint));
  CHECK(f.store->held(1) == 2);
  // Nobody is named and nothing can be waited for: anybody gives.
  f.policy.own = f.policy.donor = -1;
  CHECK(f.Load(0, 5));
  CHECK(f.Held() == kSlots);
}

TEST_CASE("a layer has slots of its own while they are not shared") {
  Fixture f;
  for (int e = 0; e < kSlots; ++e) REQUIRE(f.Load(0, e));
  f.policy.shares = false;
  f.context.layer = 0;
  f.store->EndLayerCall(f.context);
  CHECK(f.store->held(0) == kSlots / kLayers);
  CHECK(!f.store->HasFreeSlot(0));
  CHECK(f.store->HasFreeSlot(1));
}

TEST_CASE("a smaller budget takes from any layer") {
  Fixture f;
  for (int e = 0; e < kSlots; ++e) REQUIRE(f.Load(2, e));
  CHECK(f.store->SetSlots(2, int64_t{1} << 30).ok());
  CHECK(f.store->held(2) == 2);
}

}  // namespace
}  // namespace moert
