// Versioned residency: a handle always resolves to a complete version, a switch is seen by later
// steps only, a block lives as long as its readers, and the budget holds at every moment.
#include <cstring>
#include <map>
#include <new>

#include "store/block_pool.h"
#include "store/residency/cache_policy.h"
#include "store/version_manager.h"
#include "store/versioned_store.h"
#include "support/catch.h"
#include "support/synthetic_source.h"
#include "transfer/transfer_queue.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

struct Fixture {
  SyntheticSource source{SyntheticShape{2, 6, 2, 64, 48, 0, false, false, true}};
  VirtualClock clock;
  HardwareProfile profile;
  BudgetTracker budget;
  std::unique_ptr<CachePolicy> residency;
  std::unique_ptr<VersionedStore> store;

  Fixture(int high, int low, std::unique_ptr<CachePolicy> policy = MakeCachePolicy({}))
      : budget(high * Block(0) + low * Block(1)), residency(std::move(policy)) {
    std::vector<std::unique_ptr<BlockPool>> pools(2);
    pools[0] = *MakeRamBlockPool({Block(0), 12}, high, &budget);
    pools[1] = *MakeRamBlockPool({Block(1), 12}, low, &budget);
    store = std::make_unique<VersionedStore>(
        &source, std::vector<ServedVersion>{{0, 0}, {1, 1}}, std::move(pools),
        MakeVirtualLink(&source, &clock, &profile), residency.get());
  }
  int64_t Block(int version) const {
    return (source.layout(0, 0, version).bytes + kRecordAlignment - 1) / kRecordAlignment *
           kRecordAlignment;
  }
  /// The handle's bytes are those of the version it names.
  bool Complete(ExpertKey key, int64_t epoch) const {
    const ExpertHandle handle = store->Resolve(key, epoch);
    if (handle.record == nullptr) return false;
    const std::vector<std::byte>& bytes = source.record(key.layer, key.expert, handle.version);
    return std::memcmp(handle.record, bytes.data(), bytes.size()) == 0;
  }
  void LoadAll(int version) {
    for (int l = 0; l < 2; ++l) {
      for (int e = 0; e < 6; ++e) {
        REQUIRE(store->StartVersion({l, e}, version, LoadReason::kBackground));
      }
    }
    while (store->Wait()) {
    }
  }
};

TEST_CASE("a switch is seen by steps that begin after it, never within one") {
  Fixture f(2, 12);
  f.LoadAll(1);
  const ExpertKey key{1, 3};
  const int64_t before = f.store->OpenStep();
  REQUIRE(f.store->StartVersion(key, 0, LoadReason::kBackground));
  CHECK(f.store->Resolve(key, before).version == 1);
  while (f.store->Wait()) {
  }
  CHECK(f.store->Resolve(key, before).version == 1);
  f.store->Switch(key, 0, /*drop_old=*/true);
  CHECK(f.store->Resolve(key, before).version == 1);
  const int64_t after = f.store->OpenStep();
  // Both steps are open: each sees its own version, both complete.
  CHECK(f.store->Resolve(key, before).version == 1);
  CHECK(f.store->Resolve(key, after).version == 0);
  CHECK(f.Complete(key, before));
  CHECK(f.Complete(key, after));
  CHECK(f.store->pool(1).taken() == 12);
  // Evict against read: the last reader's step ends, and only then the old block is free.
  f.store->CloseStep(after);
  CHECK(f.store->pool(1).taken() == 12);
  f.store->CloseStep(before);
  CHECK(f.store->pool(1).taken() == 11);
  CHECK(f.store->State(key, 1) == VersionState::kAbsent);
}

TEST_CASE("a second switch waits until the readers of the first are gone") {
  Fixture f(2, 12);
  f.LoadAll(1);
  const ExpertKey key{0, 0};
  const int64_t first = f.store->OpenStep();
  REQUIRE(f.store->StartVersion(key, 0, LoadReason::kBackground));
  while (f.store->Wait()) {
  }
  f.store->Switch(key, 0, false);
  const int64_t second = f.store->OpenStep();
  f.store->Switch(key, 1, true);
  const int64_t third = f.store->OpenStep();
  CHECK(f.store->Resolve(key, first).version == 1);
  CHECK(f.store->Resolve(key, second).version == 0);
  CHECK(f.store->Resolve(key, third).version == 0);
  f.store->CloseStep(first);
  const int64_t fourth = f.store->OpenStep();
  CHECK(f.store->Resolve(key, third).version == 0);
  CHECK(f.store->Resolve(key, fourth).version == 1);
  CHECK(f.store->State(key, 0) == VersionState::kResident);
  f.store->CloseStep(second);
  f.store->CloseStep(third);
  f.store->CloseStep(fourth);
  CHECK(f.store->State(key, 0) == VersionState::kAbsent);
  CHECK(f.store->pool(0).taken() == 0);
}

TEST_CASE("full pools refuse a version and keep everything as it was") {
  Fixture f(1, 12);
  f.LoadAll(1);
  REQUIRE(f.store->StartVersion({0, 0}, 0, LoadReason::kBackground));
  CHECK(!f.store->StartVersion({0, 1}, 0, LoadReason::kBackground));
  CHECK(f.store->State({0, 1}, 0) == VersionState::kAbsent);
  while (f.store->Wait()) {
  }
  CHECK(f.Complete({0, 1}, f.store->OpenStep()));
}

TEST_CASE("a failed version leaves the old one in place") {
  Fixture f(2, 12);
  f.LoadAll(1);
  f.source.set_broken(true);
  REQUIRE(f.store->StartVersion({0, 2}, 0, LoadReason::kBackground));
  while (f.store->Wait()) {
  }
  CHECK(f.store->State({0, 2}, 0) == VersionState::kAbsent);
  CHECK(f.store->TakeFailure({0, 2}).code() == absl::StatusCode::kDataLoss);
  CHECK(f.store->pool(0).taken() == 0);
  CHECK(f.Complete({0, 2}, f.store->OpenStep()));
}

TEST_CASE("a failed load is the error of the call that began it, of no later one") {
  Fixture f(2, 12);
  PolicyContext context;
  context.model = &f.source.model();
  const ExpertKey key{0, 2};
  const bool abandoned = GENERATE(false, true);
  f.source.set_broken(true);
  f.store->BeginLayerCall();
  REQUIRE(f.store->StartLoad(key, 0, LoadReason::kDemand, context));
  // The call ended by an error of its own, before the load failed or without asking for it.
  const bool early = abandoned && GENERATE(false, true);
  if (early) f.store->BeginLayerCall();
  while (f.store->Wait()) {
  }
  if (abandoned && !early) f.store->BeginLayerCall();
  CHECK(f.store->State(key, 0) == VersionState::kAbsent);
  CHECK(f.store->TakeFailure(key).ok() == abandoned);
  CHECK(f.store->TakeFailure(key).ok());
  f.source.set_broken(false);
  REQUIRE(f.store->StartLoad(key, 0, LoadReason::kDemand, context));
  while (f.store->Wait()) {
  }
  CHECK(f.Complete(key, f.store->OpenStep()));
}

/// Runs out of memory from a given question on.
class Exhausted : public CachePolicy {
 public:
  std::vector<int> Capacity(const CapacitySnapshot& snapshot) override {
    Ask();
    return UniformCapacity(*snapshot.model, snapshot.slots);
  }
  int Victim(const VictimSnapshot&) override {
    Ask();
    return 0;
  }
  void Ask() {
    if (answers-- <= 0) throw std::bad_alloc();
  }
  int answers = 1 << 30;
};

TEST_CASE("a resize that runs out of memory leaves the shares of the layers, and asks nobody") {
  auto policy = std::make_unique<Exhausted>();
  Exhausted* const exhausted = policy.get();
  Fixture f(6, 12, std::move(policy));
  f.LoadAll(1);
  const std::unique_ptr<VersionManager> cache =
      MakeHighCache(&f.source.model(), {}, &f.profile, f.store.get());
  for (int e = 0; e < 6; ++e) {
    REQUIRE(f.store->StartVersion({e % 2, e}, 0, LoadReason::kBackground));
  }
  while (f.store->Wait()) {
  }
  for (int e = 0; e < 6; ++e) REQUIRE(f.store->Switch({e % 2, e}, 0, /*drop_old=*/false));
  f.store->CloseStep(f.store->OpenStep());
  const int answers = GENERATE(0, 1, 2);
  const bool managed = GENERATE(false, true);
  exhausted->answers = answers;
  CHECK_THROWS_AS(managed ? cache->Resize(2, 2, 12) : f.store->SetSlots(2, f.Block(0) * 2),
                  std::bad_alloc);
  exhausted->answers = 1 << 30;
  CHECK(f.store->capacity(0) == 3);
  CHECK(f.store->capacity(1) == 3);
  CHECK(f.store->pool(0).limit() == 6);
  REQUIRE_OK(cache->Resize(2, 2, 12));
  CHECK(f.store->capacity(0) == 1);
  CHECK(f.store->pool(0).taken() == 2);
}

TEST_CASE("the invariant under random promotions, demotions, overlapping steps and failures") {
  const uint64_t seed = GENERATE(1, 2, 3, 4, 5, 6, 7, 8);
  INFO("seed " << seed);
  std::mt19937_64 rng(seed);
  const auto draw = [&](int n) { return static_cast<int>(rng() % n); };
  Fixture f(3, 12);
  f.LoadAll(1);
  std::vector<int64_t> open;
  // The view of each open step when it began: it must see the same for as long as it is open.
  std::map<int64_t, std::vector<int>> seen;
  std::vector<int> opened;
  int switches = 0, refused = 0;
  for (int i = 0; i < 4000; ++i) {
    const ExpertKey key{draw(2), draw(6)};
    switch (draw(8)) {
      case 0:
      case 1: {
        if (open.size() >= 3) break;
        const int64_t epoch = f.store->OpenStep();
        open.push_back(epoch);
        std::vector<int> versions;
        for (int l = 0; l < 2; ++l) {
          for (int e = 0; e < 6; ++e) versions.push_back(f.store->Resolve({l, e}, epoch).version);
        }
        // Steps of one epoch see one map.
        if (seen.count(epoch)) REQUIRE(seen[epoch] == versions);
        seen[epoch] = versions;
        break;
      }
      case 2:
      case 3:
        if (open.empty()) break;
        f.store->CloseStep(open.front());
        open.erase(open.begin());
        break;
      case 4:
        f.source.set_broken(draw(10) == 0);
        if (f.store->State(key, 0) == VersionState::kAbsent &&
            !f.store->StartVersion(key, 0, LoadReason::kBackground)) {
          ++refused;
        }
        break;
      case 5:
        f.clock.AdvanceTo(f.clock.now_ns() + draw(20000));
        f.store->Pump();
        break;
      case 6:
        if (f.store->State(key, 0) == VersionState::kResident &&
            f.store->Latest(key).version == 1) {
          f.store->Switch(key, 0, false);
          ++switches;
        }
        break;
      case 7:
        if (f.store->Latest(key).version == 0) {
          f.store->Switch(key, 1, true);
          ++switches;
        }
        break;
    }
    REQUIRE(f.budget.used() <= f.budget.limit());
    for (const int64_t epoch : open) {
      for (int n = 0; n < 12; ++n) {
        const ExpertKey k{n / 6, n % 6};
        REQUIRE(f.store->Resolve(k, epoch).version == seen[epoch][n]);
        REQUIRE(f.Complete(k, epoch));
      }
    }
  }
  CHECK(switches > 50);
  CHECK(refused > 10);
}

}  // namespace
}  // namespace moert
