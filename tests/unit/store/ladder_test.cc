// Several versions in one pool: what moves never takes more than there is, whatever fails, and
// every expert resolves to a complete version meanwhile. Transfers finish when the test says so.
#include <algorithm>
#include <cstring>
#include <random>

#include "store/block_pool.h"
#include "store/cache_blocks.h"
#include "store/residency/cache_policy.h"
#include "store/version_manager.h"
#include "support/catch.h"
#include "support/held_queue.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using test::HeldQueue;
using test::SyntheticShape;
using test::SyntheticSource;

constexpr int kExperts = 8;
constexpr int kVersions = 4;
constexpr int kTop = kVersions - 1;
constexpr int64_t kInterval = 1000;

SyntheticShape FourVersions() {
  SyntheticShape shape;
  shape.layers = 1;
  shape.experts = kExperts;
  shape.hidden = 128;
  shape.intermediate = 128;
  shape.shared_intermediate = 0;
  shape.low_version = true;
  shape.lower_versions = 2;
  return shape;
}

/// Decides once what the test wrote down, at open and when it shrinks too.
struct Script final : PrecisionPolicy {
  PrecisionDecision open, next, shrink;
  PrecisionSnapshot seen;
  absl::StatusOr<PrecisionDecision> Decide(const PrecisionSnapshot& snapshot) override {
    seen = snapshot;
    switch (snapshot.moment) {
      case PrecisionMoment::kOpen:
        return open;
      case PrecisionMoment::kInterval:
        return std::exchange(next, {});
      case PrecisionMoment::kShrink:
        return std::exchange(shrink, {});
    }
    return PrecisionDecision();
  }
};

struct Fixture {
  SyntheticSource source{FourVersions()};
  BudgetTracker budget;
  std::unique_ptr<CachePolicy> lru = MakeCachePolicy({});
  Script script;
  HeldQueue* queue = nullptr;
  std::unique_ptr<VersionedStore> store;
  std::unique_ptr<VersionManager> manager;
  int64_t steps = 0, now_ns = 0;

  /// Bytes for `high` experts in the first version and the others in the last.
  explicit Fixture(int high, int spare = 1) : budget(Bytes(high, spare)) {
    const std::vector<int> versions = {0, 1, 2, 3};
    std::vector<std::unique_ptr<BlockPool>> pools(1);
    pools[0] = *MakeRamBlockPool(BlocksOfVersions(source, versions), kExperts, &budget);
    pools[0]->SetByteLimit(Bytes(high, spare));
    auto held = std::make_unique<HeldQueue>(&source);
    queue = held.get();
    std::vector<ServedVersion> served;
    for (const int version : versions) served.push_back({version, 0, version * kExperts});
    store = std::make_unique<VersionedStore>(&source, served, std::move(pools), std::move(held),
                                             lru.get());
    TransitionOptions options;
    options.interval_ns = kInterval;
    manager = MakeLadder(&source.model(), &script, options, store.get());
  }
  absl::Status Open(int high) { return manager->Preload(high); }

  int64_t Block(int rung) const { return BlockBytes(source.layout(0, 0, kTop - rung)); }
  int64_t Bytes(int high, int spare) const {
    return (high + spare) * Block(kTop) + (kExperts - high + spare) * Block(0);
  }
  int64_t Capacity(int high) const { return Bytes(high, 0); }
  absl::Status Resize(int high, int spare = 1) {
    return manager->Resize(high, high + spare, kExperts - high + spare);
  }
  int Rung(int e) const { return kTop - store->Latest({0, e}).version; }
  int64_t Taken() const {
    int64_t taken = 0;
    for (int e = 0; e < kExperts; ++e) taken += Block(Rung(e));
    return taken;
  }
  /// Takes the script's decision first, if there is one.
  void Step() {
    if (!script.next.promote.empty() || !script.next.demote.empty()) now_ns += kInterval;
    PolicyContext context;
    context.model = &source.model();
    context.step = ++steps;
    context.now_ns = now_ns;
    manager->AfterStep(context);
    manager->BeforeStep(context);
    const int64_t epoch = store->OpenStep();
    manager->AfterStepOpened(context);
    Check();
    store->CloseStep(epoch);
    Check();
  }
  void FinishAll() {
    while (queue->waiting() > 0) queue->Finish(0);
  }
  void Settle() {
    for (int i = 0; i < 4 * kExperts; ++i) {
      FinishAll();
      Step();
    }
  }
  void Check() const {
    REQUIRE(budget.used() <= budget.limit());
    REQUIRE(store->pool(0).held_bytes() <= store->pool(0).limit_bytes());
    for (int e = 0; e < kExperts; ++e) {
      const ExpertHandle handle = store->Latest({0, e});
      REQUIRE(handle.record != nullptr);
      const std::vector<std::byte>& bytes = source.record(0, e, handle.version);
      REQUIRE(std::memcmp(handle.record, bytes.data(), bytes.size()) == 0);
    }
  }
};

std::vector<ExpertKey> Times(int expert, int n) {
  return std::vector<ExpertKey>(static_cast<size_t>(n), ExpertKey{0, expert});
}

TEST_CASE("a rate that no number of ns can express allows one transfer and no other") {
  for (const double gbps : {1e-9, 1e-300}) {
    TransitionPacer pacer(gbps);
    CHECK(pacer.Allows(1000));
    pacer.Spend(1000, int64_t{1} << 43);
    CHECK_FALSE(pacer.Allows(int64_t{1} << 58));
  }
}

TEST_CASE(
    "it opens in the versions that the policy names, and refuses what the bytes do not hold") {
  Fixture f(2);
  SECTION("named") {
    f.script.open.promote = {{0, 1}, {0, 5}, {0, 5}};
    REQUIRE_OK(f.Open(2));
    f.Check();
    CHECK(f.Rung(1) == 1);
    CHECK(f.Rung(5) == 2);
    CHECK(f.Rung(0) == 0);
    CHECK(f.script.seen.capacity_bytes == f.Capacity(2));
    REQUIRE(f.script.seen.bytes.size() == kExperts * kVersions);
    for (int v = 0; v < kVersions; ++v) {
      CHECK(f.script.seen.bytes[static_cast<size_t>(v)] == f.Block(kTop - v));
    }
  }
  SECTION("beyond the highest") {
    f.script.open.promote = Times(1, kVersions);
    CHECK_THAT(std::string(f.Open(2).message()), Catch::Contains("beyond the highest"));
  }
  SECTION("too much") {
    for (int e = 0; e < 3; ++e) {
      for (const ExpertKey key : Times(e, kTop)) f.script.open.promote.push_back(key);
    }
    CHECK_THAT(std::string(f.Open(2).message()), Catch::Contains("the budget holds"));
  }
}

TEST_CASE("a promotion waits until what pays for it has left") {
  Fixture f(1);
  f.script.open.promote = Times(0, kTop);
  REQUIRE_OK(f.Open(1));
  f.script.next = {Times(1, kTop), Times(0, kTop)};
  f.Step();
  REQUIRE(f.queue->waiting() == 1);
  CHECK(f.queue->transfer(0).key.expert == 0);
  SECTION("it arrives") {
    f.FinishAll();
    f.Step();
    REQUIRE(f.queue->waiting() == 1);
    CHECK(f.queue->transfer(0).key.expert == 1);
    f.queue->Tear(0);
    f.Check();
    f.FinishAll();
    f.Step();
    CHECK(f.Rung(0) == 0);
    CHECK(f.Rung(1) == kTop);
  }
  SECTION("it fails: nobody enters") {
    f.source.set_broken(true);
    f.FinishAll();
    f.source.set_broken(false);
    f.Settle();
    CHECK(f.Rung(0) == kTop);
    CHECK(f.Rung(1) == 0);
    CHECK(f.manager->stats().deferred > 0);
  }
  CHECK(f.Taken() == f.Capacity(1));
}

TEST_CASE("several versions at once, and what would not fit or does not exist is dropped") {
  Fixture f(1, 2);
  REQUIRE_OK(f.Open(1));
  f.script.next.promote = Times(2, 2);
  f.script.next.promote.push_back({0, kExperts});
  f.script.next.demote = Times(3, 1);
  for (const ExpertKey key : Times(4, kTop)) f.script.next.promote.push_back(key);
  f.Settle();
  CHECK(f.Rung(2) == 2);
  CHECK(f.Rung(3) == 0);
  CHECK(f.Rung(4) == 0);
  CHECK(f.manager->stats().policy_fallbacks == 2);
  CHECK(f.manager->stats().deferred > 0);
  CHECK(f.Taken() <= f.Capacity(1));
}

TEST_CASE("a smaller budget demotes at once, and what fails leaves the old one") {
  Fixture f(4);
  for (int e = 0; e < 4; ++e) {
    for (const ExpertKey key : Times(e, kTop)) f.script.open.promote.push_back(key);
  }
  REQUIRE_OK(f.Open(4));
  const std::vector<int32_t> counts = {9, 8, 1, 7, 0, 0, 0, 0};
  RoutingView routing;
  routing.counts = counts;
  PolicyContext context;
  context.model = &f.source.model();
  f.manager->OnRouting(context, routing);
  SECTION("whom the policy names") {
    f.script.shrink.demote = Times(0, kTop);
    REQUIRE_OK(f.Resize(3));
    CHECK(f.Rung(0) == 0);
    CHECK(f.Rung(2) == kTop);
  }
  SECTION("those used least, where it does not say") {
    REQUIRE_OK(f.Resize(3));
    CHECK(f.Rung(2) == 0);
    CHECK(f.Rung(0) == kTop);
  }
  SECTION("on the way") {
    f.script.next = {Times(5, kTop), Times(1, kTop)};
    f.Step();
    REQUIRE(f.queue->waiting() == 1);
    REQUIRE_OK(f.Resize(2));
    CHECK(f.queue->waiting() == 0);
    CHECK(f.Taken() <= f.Capacity(2));
  }
  SECTION("broken") {
    f.source.set_broken(true);
    CHECK(!f.Resize(1).ok());
    f.source.set_broken(false);
    CHECK(f.Taken() == f.Capacity(4));
    CHECK(f.store->pool(0).limit_bytes() == f.Bytes(4, 1));
    // It goes on as before.
    f.script.next = {Times(5, kTop), Times(1, kTop)};
    f.Settle();
    CHECK(f.Rung(5) == kTop);
    REQUIRE_OK(f.Resize(3));
  }
  f.Check();
}

TEST_CASE("the invariant under random decisions, arrivals, failures and budgets") {
  const uint64_t seed = GENERATE(range(1, 9));
  INFO("seed " << seed);
  std::mt19937_64 rng(seed);
  const auto draw = [&](int n) { return static_cast<int>(rng() % static_cast<uint64_t>(n)); };
  const int spare = 1 + static_cast<int>(seed % 2);
  int high = 3, resizes = 0;
  Fixture f(high, spare);
  REQUIRE_OK(f.Open(high));
  for (int i = 0; i < 1000; ++i) {
    switch (draw(6)) {
      case 0:
      case 1:
        for (int k = draw(12); k-- > 0;) {
          (draw(2) == 0 ? f.script.next.promote : f.script.next.demote)
              .push_back({0, draw(kExperts)});
        }
        f.Step();
        break;
      case 2:
      case 3:
        if (f.queue->waiting() == 0) break;
        f.source.set_broken(draw(4) == 0);
        f.queue->Finish(static_cast<size_t>(draw(static_cast<int>(f.queue->waiting()))));
        f.source.set_broken(false);
        break;
      case 4:
        if (f.queue->waiting() > 0) f.queue->Tear(0);
        break;
      case 5: {
        if (draw(8) != 0) break;
        const int next = 1 + draw(5);
        if (next > high) f.budget.SetLimit(f.Bytes(next, spare));
        REQUIRE_OK(f.Resize(next, spare));
        f.budget.SetLimit(f.Bytes(next, spare));
        high = next;
        ++resizes;
        break;
      }
    }
    f.Check();
    REQUIRE(f.Taken() <= f.Capacity(high));
  }
  CHECK(f.manager->stats().promotions > 50);
  CHECK(f.manager->stats().demotions > 50);
  CHECK(resizes > 5);
  // After any failure all of it can still move: everybody down, then as many up as there is room.
  f.script.next = {};
  f.Settle();
  for (int e = 0; e < kExperts; ++e) {
    for (const ExpertKey key : Times(e, f.Rung(e))) f.script.next.demote.push_back(key);
  }
  f.Settle();
  CHECK(f.Taken() == kExperts * f.Block(0));
  for (int e = 0; e < high; ++e) {
    for (const ExpertKey key : Times(e, kTop)) f.script.next.promote.push_back(key);
  }
  f.Settle();
  CHECK(f.Taken() == f.Capacity(high));
  CHECK(f.store->pool(0).taken() == kExperts);
}

}  // namespace
}  // namespace moert
