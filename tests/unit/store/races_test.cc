// The named races of versioned residency, each at the moment where it bites: transfers finish when
// the test says so. After every move every expert resolves to a complete version for every open
// step, and the budget holds.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <random>

#include "store/block_pool.h"
#include "store/residency/cache_policy.h"
#include "store/version_manager.h"
#include "store/versioned_store.h"
#include "tests/support/catch.h"
#include "tests/support/held_queue.h"
#include "tests/support/synthetic_source.h"

namespace moert {
namespace {

using test::HeldQueue;
using test::SyntheticShape;
using test::SyntheticSource;

constexpr int kHigh = 0, kLow = 1;
constexpr int kExperts = 6;

/// Decides what the test wrote down, once.
struct Script final : PrecisionPolicy {
  PrecisionDecision next;
  std::vector<double> worth;
  absl::StatusOr<PrecisionDecision> Decide(const PrecisionSnapshot& snapshot) override {
    switch (snapshot.moment) {
      case PrecisionMoment::kOpen:
        return PrecisionDecision();
      case PrecisionMoment::kShrink: {
        PrecisionDecision decision;
        decision.worth = worth;
        return decision;
      }
      case PrecisionMoment::kInterval:
        return std::exchange(next, {});
    }
    return PrecisionDecision();
  }
};

/// One layer of experts in exactly one version each: `high` high ones and the spare blocks.
struct Fixture {
  SyntheticSource source{SyntheticShape{1, kExperts, 2, 64, 96, 0, false, false, true}};
  BudgetTracker budget;
  std::unique_ptr<CachePolicy> lru = MakeCachePolicy({});
  Script script;
  HeldQueue* queue;
  std::unique_ptr<VersionedStore> store;
  std::unique_ptr<VersionManager> manager;
  // Epoch of each open step -> versions it began with. Steps between which nothing switched share
  // an epoch.
  std::multimap<int64_t, std::vector<int>> open;
  int64_t steps = 0;

  int64_t now_ns = 0;

  explicit Fixture(int high, int spare = 1, double max_gbps = 0, int64_t interval_ns = 0)
      : budget(Bytes(high, spare)) {
    std::vector<std::unique_ptr<BlockPool>> pools(2);
    pools[0] = *MakeRamBlockPool({Block(kHigh), kExperts + spare}, high + spare, &budget);
    pools[1] = *MakeRamBlockPool({Block(kLow), kExperts + spare}, kExperts - high + spare, &budget);
    auto held = std::make_unique<HeldQueue>(&source);
    queue = held.get();
    store = std::make_unique<VersionedStore>(&source, std::vector<ServedVersion>{{0, 0}, {1, 1}},
                                             std::move(pools), std::move(held), lru.get());
    TransitionOptions options;
    options.interval_ns = interval_ns;  // 0: every step decides
    options.spare = spare;
    options.max_gbps = max_gbps;
    manager = MakeHotSet(&source.model(), &script, options, store.get());
    REQUIRE_OK(manager->Preload(high));
    Check();
  }
  int64_t Block(int version) const {
    return (source.layout(0, 0, version).bytes + kRecordAlignment - 1) / kRecordAlignment *
           kRecordAlignment;
  }
  int64_t Bytes(int high, int spare) const {
    return (high + spare) * Block(kHigh) + (kExperts - high + spare) * Block(kLow);
  }
  PolicyContext Context() const {
    PolicyContext context;
    context.model = &source.model();
    context.step = steps;
    context.phase = Phase::kDecode;
    context.now_ns = now_ns;
    return context;
  }
  /// The script's decision comes at the end of a step; here of one just before this one.
  int64_t Begin() {
    manager->AfterStep(Context());
    manager->BeforeStep(Context());
    const int64_t epoch = store->OpenStep();
    manager->AfterStepOpened(Context());
    ++steps;
    std::vector<int> versions;
    for (int e = 0; e < kExperts; ++e) versions.push_back(store->Resolve({0, e}, epoch).version);
    open.emplace(epoch, versions);
    Check();
    return epoch;
  }
  void End(int64_t epoch) {
    store->CloseStep(epoch);
    open.erase(open.find(epoch));
    Check();
  }
  void Step() { End(Begin()); }
  int Version(int e) const { return store->Latest({0, e}).version; }
  int Highs() const {
    int n = 0;
    for (int e = 0; e < kExperts; ++e) n += Version(e) == kHigh;
    return n;
  }
  void Check() const {
    REQUIRE(budget.used() <= budget.limit());
    for (int e = 0; e < kExperts; ++e) {
      Complete(store->Latest({0, e}), e);
      for (const auto& [epoch, versions] : open) {
        const ExpertHandle handle = store->Resolve({0, e}, epoch);
        REQUIRE(handle.version == versions[e]);
        Complete(handle, e);
      }
    }
  }
  void Complete(const ExpertHandle& handle, int e) const {
    REQUIRE(handle.record != nullptr);
    const std::vector<std::byte>& bytes = source.record(0, e, handle.version);
    REQUIRE(std::memcmp(handle.record, bytes.data(), bytes.size()) == 0);
  }
  void Swap(int enter, int leave) { script.next = {{{0, enter}}, {{0, leave}}}; }
  /// The transfer of an expert, by position on the link.
  size_t Waiting(int e) const {
    for (size_t i = 0; i < queue->waiting(); ++i) {
      if (queue->transfer(i).key.expert == e) return i;
    }
    FAIL("expert " << e << " is not on the link");
    return 0;
  }
};

TEST_CASE("full-pool swap: with one spare block of each, every order of arrival works") {
  const bool demotion_first = GENERATE(true, false);
  const bool step_between = GENERATE(true, false);
  Fixture f(2);
  f.Swap(4, 0);
  f.Step();
  REQUIRE(f.queue->waiting() == 2);  // both ways at once: that is what the spares are for
  CHECK(f.store->pool(kHigh).taken() == 3);
  CHECK(f.store->pool(kLow).taken() == 5);
  f.queue->Tear(0);
  f.queue->Tear(1);
  f.Check();
  f.queue->Finish(f.Waiting(demotion_first ? 0 : 4));
  if (step_between) f.Step();
  f.queue->Finish(0);
  f.Step();
  f.Step();
  CHECK(f.Version(4) == kHigh);
  CHECK(f.Version(0) == kLow);
  CHECK(f.store->pool(kHigh).taken() == 2);
  CHECK(f.store->pool(kLow).taken() == 4);
  // The same blocks do it again and again.
  for (int i = 0; i < 20; ++i) {
    f.Swap(i % 2 == 0 ? 0 : 4, i % 2 == 0 ? 4 : 0);
    f.Step();
    while (f.queue->waiting() > 0) f.queue->Finish(f.queue->waiting() - 1);
    f.Step();
    f.Step();
    REQUIRE(f.Highs() == 2);
  }
  CHECK(f.manager->stats().promotions == 21);
}

TEST_CASE("evict against read: an old version stays while a step may read it") {
  Fixture f(2);
  const int64_t reader = f.Begin();  // sees 0 high
  f.Swap(4, 0);
  f.Step();
  f.queue->Finish(f.Waiting(0));
  f.queue->Finish(f.Waiting(4));
  f.Step();  // the switch
  CHECK(f.Version(0) == kLow);
  CHECK(f.store->Resolve({0, 0}, reader).version == kHigh);
  // The reader's blocks are the spare ones now: the next swap has to wait, not to take them.
  f.Swap(5, 1);
  f.Step();
  f.Step();
  CHECK(f.queue->waiting() == 0);
  CHECK(f.store->Resolve({0, 0}, reader).version == kHigh);
  CHECK(f.manager->stats().deferred > 0);
  f.End(reader);
  f.Swap(5, 1);
  f.Step();
  CHECK(f.queue->waiting() == 2);
  while (f.queue->waiting() > 0) f.queue->Finish(0);
  f.Step();
  CHECK(f.Version(5) == kHigh);
}

TEST_CASE("publish against capture: what arrives inside a step is seen by the next one only") {
  Fixture f(2);
  f.Swap(3, 1);
  f.Step();
  const int64_t captured = f.Begin();  // its table is what a graph would have captured
  f.queue->Finish(f.Waiting(3));
  f.queue->Finish(f.Waiting(1));
  f.store->Pump();  // arrived: complete in memory, and no handle has moved
  f.Check();
  CHECK(f.store->State({0, 3}, kHigh) == VersionState::kResident);
  CHECK(f.Version(3) == kLow);
  const int64_t next = f.Begin();
  CHECK(f.store->Resolve({0, 3}, captured).version == kLow);
  CHECK(f.store->Resolve({0, 3}, next).version == kHigh);
  f.End(captured);
  CHECK(f.store->Resolve({0, 3}, next).version == kHigh);
  f.End(next);
}

TEST_CASE("budget change against promotion: shrinking under a promotion in flight") {
  const bool last_first = GENERATE(true, false);
  const bool arrived = GENERATE(true, false);
  Fixture f(3);
  f.queue->last_first = last_first;
  f.Swap(5, 0);
  f.Step();
  REQUIRE(f.queue->waiting() == 2);
  if (arrived) f.queue->Finish(f.Waiting(5));
  // One high expert instead of three, as Engine::SetBudget does it: the limit last.
  REQUIRE_OK(f.manager->Resize(1, 1 + 1, kExperts - 1 + 1));
  CHECK(f.queue->waiting() == 0);
  CHECK(f.Highs() == 1);
  f.budget.SetLimit(f.Bytes(1, 1));
  f.Check();
  CHECK(f.store->pool(kHigh).taken() == 1);
  CHECK(f.store->pool(kLow).taken() == kExperts - 1);
  // And back: growing lets the next decision promote.
  f.budget.SetLimit(f.Bytes(3, 1));
  REQUIRE_OK(f.manager->Resize(3, 3 + 1, kExperts - 3 + 1));
  f.script.next = {{{0, 4}, {0, 2}}, {}};
  f.Step();
  for (int i = 0; i < 3; ++i) {
    while (f.queue->waiting() > 0) f.queue->Finish(0);
    f.Step();
  }
  CHECK(f.Version(4) == kHigh);
  CHECK(f.Version(2) == kHigh);
}

TEST_CASE("a smaller budget behind a larger one that nobody has used yet") {
  Fixture f(1);
  const auto resize = [&](int high) {
    const int64_t bytes = f.Bytes(high, 1);
    f.budget.SetLimit(std::max(f.budget.limit(), bytes));
    REQUIRE_OK(f.manager->Resize(high, high + 1, kExperts - high + 1));
    f.budget.SetLimit(bytes);
    f.Check();
  };
  resize(5);
  CHECK(f.store->pool(kLow).taken() == 5);  // in more blocks than the two of the plan
  f.source.set_broken(true);
  f.script.next = {{{0, 1}, {0, 2}, {0, 3}, {0, 4}, {0, 5}}, {}};
  f.Step();
  REQUIRE(f.queue->waiting() == 3);
  while (f.queue->waiting() > 0) f.queue->Finish(0);
  f.source.set_broken(false);
  f.Step();
  // The high blocks keep their memory, since the limit covers it, and the low ones are as many.
  CHECK(f.Highs() == 1);
  CHECK(f.store->pool(kHigh).held_bytes() == 4 * f.Block(kHigh));
  resize(3);
  CHECK(f.Highs() == 1);
  // Promotions catch up, and then all blocks of the plan can be had again.
  f.script.next = {{{0, 2}, {0, 3}}, {}};
  f.Step();
  for (int i = 0; i < 3; ++i) {
    while (f.queue->waiting() > 0) f.queue->Finish(0);
    f.Step();
  }
  CHECK(f.Highs() == 3);
  CHECK(f.store->pool(kHigh).limit() == 4);
}

TEST_CASE("a smaller budget demotes what is worth least") {
  Fixture f(3);
  const auto shrink = [&](int64_t high) {
    REQUIRE_OK(f.manager->Resize(high, high + 1, kExperts - high + 1));
    f.budget.SetLimit(f.Bytes(static_cast<int>(high), 1));
    f.Check();
  };
  SECTION("to the policy") {
    f.script.worth = {5, 1, 9, 20, 20, 20};  // the last three are low already
    shrink(2);
    CHECK(f.Version(1) == kLow);
    CHECK(f.Highs() == 2);
    f.script.worth[2] = 4;
    shrink(1);
    CHECK(f.Version(0) == kHigh);
    CHECK(f.manager->stats().policy_fallbacks == 0);
  }
  SECTION("by its selections, where the policy does not say") {
    const std::vector<int32_t> counts = {1, 0, 3, 9, 9, 9};
    RoutingView routing;
    routing.counts = counts;
    PolicyContext context;
    context.model = &f.source.model();
    f.manager->OnRouting(context, routing);
    shrink(1);
    CHECK(f.Version(2) == kHigh);
    CHECK(f.manager->stats().policy_fallbacks == 0);
  }
  SECTION("an answer that is none is counted; of equals the first stay") {
    f.script.worth = {std::nan(""), 0, 0, 0, 0, 0};
    shrink(2);
    CHECK(f.Version(2) == kLow);
    f.script.worth = {1};
    shrink(1);
    CHECK(f.Version(0) == kHigh);
    CHECK(f.manager->stats().policy_fallbacks == 2);
  }
}

TEST_CASE("drain against promote: what was queued and never started is forgotten") {
  Fixture f(3);
  // One spare block: of three swaps one starts, the others stand in line.
  f.script.next = {{{0, 3}, {0, 4}, {0, 5}}, {{0, 0}, {0, 1}, {0, 2}}};
  f.Step();
  REQUIRE(f.queue->waiting() == 2);
  REQUIRE_OK(f.manager->Resize(3, 3 + 1, kExperts - 3 + 1));  // drains
  CHECK(f.queue->waiting() == 0);
  f.Check();
  CHECK(f.Highs() == 3);
  const int64_t promotions = f.manager->stats().promotions;
  for (int i = 0; i < 5; ++i) f.Step();
  CHECK(f.queue->waiting() == 0);
  CHECK(f.manager->stats().promotions == promotions);
  CHECK(f.Highs() == 3);
  // Nobody is left marked as on its way: all of them can be asked for again.
  std::vector<ExpertKey> low, high;
  for (int e = 0; e < kExperts; ++e) (f.Version(e) == kHigh ? high : low).push_back({0, e});
  const int64_t fallbacks = f.manager->stats().policy_fallbacks;
  f.script.next = {low, high};
  for (int i = 0; i < 12; ++i) {
    f.manager->AfterStep(f.Context());
    f.manager->BeforeStep(f.Context());
    const int64_t epoch = f.store->OpenStep();
    f.manager->AfterStepOpened(f.Context());
    f.store->CloseStep(epoch);
    while (f.queue->waiting() > 0) f.queue->Finish(0);
    f.Check();
    if (i < 11) f.script.next = {};
  }
  CHECK(f.manager->stats().policy_fallbacks == fallbacks);
}

TEST_CASE(
    "decide against begin: what is decided at a step's end, the next begin starts, not that end") {
  Fixture f(2);
  const int64_t first = f.Begin();
  f.Swap(4, 0);
  const int64_t second = f.Begin();  // decided, and starts both ways
  REQUIRE(f.queue->waiting() == 2);
  f.script.next = {{{0, 5}}, {{0, 1}}};
  f.End(first);
  f.manager->AfterStep(f.Context());
  CHECK(f.queue->waiting() == 2);
  CHECK(f.script.next.promote.empty());  // taken
  // Arrivals between an end and the begin behind it switch at that begin.
  f.queue->Finish(f.Waiting(4));
  f.queue->Finish(f.Waiting(0));
  f.manager->BeforeStep(f.Context());
  const int64_t third = f.store->OpenStep();
  CHECK(f.store->Resolve({0, 4}, third).version == kHigh);
  CHECK(f.store->Resolve({0, 4}, second).version == kLow);
  f.Check();
  // The spares are the second step's now: the decision waits for it, and is not forgotten.
  f.manager->AfterStepOpened(f.Context());
  CHECK(f.queue->waiting() == 0);
  f.store->CloseStep(third);
  f.End(second);
  f.manager->BeforeStep(f.Context());
  const int64_t fourth = f.store->OpenStep();
  f.manager->AfterStepOpened(f.Context());
  CHECK(f.queue->waiting() == 2);
  f.store->CloseStep(fourth);
  while (f.queue->waiting() > 0) f.queue->Finish(0);
  f.Step();
  CHECK(f.Version(5) == kHigh);
  CHECK(f.Version(1) == kLow);
}

TEST_CASE("a decision an interval, at the end of a step; opening counts as time, too") {
  Fixture f(2, 1, 0, 1000);
  const auto taken = [&] { return f.script.next.promote.empty(); };
  f.now_ns = 5000;
  f.Swap(4, 0);
  f.manager->BeforeStep(f.Context());
  CHECK(taken());
  f.Swap(4, 0);
  f.now_ns += 999;
  f.manager->AfterStep(f.Context());
  CHECK(!taken());
  f.now_ns += 1;
  f.manager->BeforeStep(f.Context());
  CHECK(!taken());
  f.manager->AfterStep(f.Context());
  CHECK(taken());
}

TEST_CASE("the invariant under random decisions, arrivals, failures, overlaps and budgets") {
  const uint64_t seed = GENERATE(range(1, 13));
  INFO("seed " << seed);
  std::mt19937_64 rng(seed);
  const auto draw = [&](int n) { return static_cast<int>(rng() % n); };
  const int spare = 1 + static_cast<int>(seed % 3);
  Fixture f(3, spare);
  int high = 3;
  int64_t torn = 0, resizes = 0, overlaps = 0;
  for (int i = 0; i < 1500; ++i) {
    switch (draw(8)) {
      case 0:
      case 1: {  // a decision of any kind, sensible or not, and the step that carries it out
        if (f.open.size() >= 3) break;
        std::vector<int> experts(kExperts);
        for (int e = 0; e < kExperts; ++e) experts[e] = e;
        std::shuffle(experts.begin(), experts.end(), rng);
        PrecisionDecision decision;
        const int n = draw(4);
        for (int k = 0; k < n; ++k) {
          (f.Version(experts[k]) == kHigh ? decision.demote : decision.promote)
              .push_back({0, experts[k]});
        }
        if (draw(10) == 0) decision.promote.push_back({0, kExperts + draw(2)});
        f.script.next = decision;
        overlaps += !f.open.empty();
        f.Begin();
        break;
      }
      case 2:
      case 3:
        if (f.open.empty()) break;
        f.End(std::next(f.open.begin(), draw(f.open.size()))->first);
        if (i % 2 == 0) f.manager->AfterStep(f.Context());  // a decision beside open steps
        break;
      case 4:
      case 5:  // an arrival, in any order, complete or failed
        if (f.queue->waiting() == 0) break;
        f.source.set_broken(draw(8) == 0);
        f.queue->Finish(draw(static_cast<int>(f.queue->waiting())));
        f.source.set_broken(false);
        break;
      case 6:  // half an arrival: whoever reads its block now reads garbage
        if (f.queue->waiting() == 0) break;
        f.queue->Tear(draw(static_cast<int>(f.queue->waiting())));
        ++torn;
        break;
      case 7: {  // another budget, as the engine sets it: no step is open
        if (!f.open.empty() || draw(6) != 0) break;
        const int next = 1 + draw(4);
        if (next > high) f.budget.SetLimit(f.Bytes(next, spare));
        REQUIRE_OK(f.manager->Resize(next, next + spare, kExperts - next + spare));
        f.budget.SetLimit(f.Bytes(next, spare));
        high = next;
        ++resizes;
        break;
      }
    }
    f.Check();
    REQUIRE(f.store->pool(kHigh).taken() <= high + spare);
  }
  CHECK(f.manager->stats().promotions > 20);
  CHECK(f.manager->stats().demotions > 20);
  CHECK(torn > 20);
  CHECK(overlaps > 20);
  CHECK(resizes > 2);
  // The rest settles, and the pools hold what the two versions need and no more.
  while (!f.open.empty()) f.End(f.open.begin()->first);
  for (int i = 0; i < 8; ++i) {
    while (f.queue->waiting() > 0) f.queue->Finish(0);
    f.Step();
  }
  CHECK(f.store->pool(kHigh).taken() == f.Highs());
  CHECK(f.store->pool(kLow).taken() == kExperts - f.Highs());
}

TEST_CASE("a byte rate rations transitions, and lets them through in the end") {
  const double gbps = GENERATE(0.0, 1e-3, 1e-4);
  // One decision, and no other that would replace what waits of it.
  constexpr int64_t kInterval = int64_t{3600} * 1'000'000'000;
  Fixture f(3, 3, gbps, kInterval);
  f.now_ns = kInterval;
  f.script.next = {{{0, 3}, {0, 4}, {0, 5}}, {{0, 0}, {0, 1}, {0, 2}}};
  int64_t started = 0, steps = 0;
  constexpr int64_t kStepNs = 1'000'000;
  while (f.manager->stats().promotions + f.manager->stats().demotions < 6) {
    REQUIRE(steps < 10000);
    f.Step();
    while (f.queue->waiting() > 0) {
      started += f.queue->transfer(0).bytes;
      f.queue->Finish(0);
    }
    f.now_ns += kStepNs;
    ++steps;
    // One transfer of credit is all that may be ahead of the rate.
    if (gbps > 0) {
      REQUIRE(static_cast<double>(started) <= gbps * static_cast<double>(steps * kStepNs) +
                                                  2.0 * static_cast<double>(f.Block(kHigh)));
    }
  }
  const double least_ns = gbps > 0 ? static_cast<double>(started) / gbps : 0;
  CHECK(static_cast<double>(steps * kStepNs) >= 0.5 * least_ns);
  CHECK(static_cast<double>(steps * kStepNs) <= 1.5 * least_ns + 5 * kStepNs);
  f.Step();
  f.Step();
  CHECK(f.Highs() == 3);
  CHECK(f.Version(3) == kHigh);
}

TEST_CASE("a transfer that fails in the middle of a swap leaves both experts usable") {
  Fixture f(2);
  f.Swap(4, 0);
  f.Step();
  f.source.set_broken(true);
  f.queue->Finish(f.Waiting(4));  // the promotion
  f.source.set_broken(false);
  f.queue->Finish(f.Waiting(0));
  f.Step();
  f.Step();
  CHECK(f.Version(4) == kLow);
  CHECK(f.Version(0) == kLow);
  CHECK(f.Highs() == 1);
  CHECK(f.manager->stats().deferred == 1);
  f.script.next = {{{0, 4}}, {}};
  f.Step();
  f.queue->Finish(0);
  f.Step();
  CHECK(f.Version(4) == kHigh);
}

}  // namespace
}  // namespace moert
