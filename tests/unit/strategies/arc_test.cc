// ARC against a plain transcription of the published algorithm, and what it adds to it.
#include "strategies/arc.h"

#include <algorithm>
#include <deque>
#include <random>

#include "store/block_pool.h"
#include "store/residency/cache_policy.h"
#include "store/versioned_store.h"
#include "tests/support/catch.h"
#include "tests/support/synthetic_source.h"
#include "transfer/transfer_queue.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

/// Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003, Fig. 4,
/// line by line. Front: least recent.
struct PublishedArc {
  const int c;
  double p = 0;
  std::deque<int> t1, t2, b1, b2;

  static bool In(const std::deque<int>& list, int x) {
    return std::find(list.begin(), list.end(), x) != list.end();
  }
  static void Remove(std::deque<int>* list, int x) {
    list->erase(std::find(list->begin(), list->end(), x));
  }
  static double Size(const std::deque<int>& list) { return static_cast<double>(list.size()); }

  void Replace(int x) {
    if (!t1.empty() && (Size(t1) > p || (In(b2, x) && Size(t1) == p))) {
      b1.push_back(t1.front());
      t1.pop_front();
    } else {
      b2.push_back(t2.front());
      t2.pop_front();
    }
  }

  /// True on a hit.
  bool Request(int x) {
    if (In(t1, x) || In(t2, x)) {
      Remove(In(t1, x) ? &t1 : &t2, x);
      t2.push_back(x);
      return true;
    }
    if (In(b1, x)) {
      const double delta = Size(b1) >= Size(b2) ? 1 : Size(b2) / Size(b1);
      p = std::min(p + delta, static_cast<double>(c));
      Replace(x);
      Remove(&b1, x);
      t2.push_back(x);
      return false;
    }
    if (In(b2, x)) {
      const double delta = Size(b2) >= Size(b1) ? 1 : Size(b1) / Size(b2);
      p = std::max(p - delta, 0.0);
      Replace(x);
      Remove(&b2, x);
      t2.push_back(x);
      return false;
    }
    const int l1 = static_cast<int>(t1.size() + b1.size());
    const int all = l1 + static_cast<int>(t2.size() + b2.size());
    if (l1 == c) {
      if (static_cast<int>(t1.size()) < c) {
        b1.pop_front();
        Replace(x);
      } else {
        t1.pop_front();
      }
    } else if (all >= c) {
      if (all == 2 * c) b2.pop_front();
      Replace(x);
    }
    t1.push_back(x);
    return false;
  }
};

std::vector<int> AsVector(const std::deque<int>& list) { return {list.begin(), list.end()}; }

/// Traces that exercise recency, frequency, scans and changes between them.
std::vector<int> MakeTrace(const std::string& kind, int keys, int length, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<int> trace;
  std::vector<double> zipf(keys);
  for (int i = 0; i < keys; ++i) zipf[i] = 1.0 / (i + 1);
  std::discrete_distribution<int> skewed(zipf.begin(), zipf.end());
  std::uniform_int_distribution<int> uniform(0, keys - 1);
  for (int t = 0; t < length; ++t) {
    if (kind == "uniform") trace.push_back(uniform(rng));
    if (kind == "zipf") trace.push_back(skewed(rng));
    if (kind == "loop") trace.push_back(t % (keys / 2));
    if (kind == "scan") trace.push_back(t / 40 % 2 == 0 ? uniform(rng) % 4 : t % keys);
    if (kind == "shift") trace.push_back((skewed(rng) + t / 300 * 7) % keys);
  }
  return trace;
}

TEST_CASE("ARC in the store is the published algorithm, request by request") {
  const std::string kind = GENERATE("uniform", "zipf", "loop", "scan", "shift");
  const int capacity = GENERATE(1, 2, 5, 12);
  constexpr int kKeys = 24;
  INFO(kind << " capacity " << capacity);
  SyntheticSource source{SyntheticShape{1, kKeys, 1, 16, 16, 0}};
  VirtualClock clock;
  HardwareProfile profile;
  const int64_t block =
      (source.layout(0, 0, 0).bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
  BudgetTracker budget(capacity * block);
  std::vector<std::unique_ptr<BlockPool>> pools(1);
  pools[0] = *MakeRamBlockPool({block, kKeys}, capacity, &budget);

  // The policy as the engine calls it, with a mirror of its lists beside it.
  ArcLists lists(kKeys, capacity);
  struct Mirrored final : ResidencyPolicy {
    std::unique_ptr<ResidencyPolicy> arc;
    ArcLists* lists;
    std::vector<int> Capacity(const CapacitySnapshot& s) override { return arc->Capacity(s); }
    void Observe(const LayerEvent& event) override {
      arc->Observe(event);
      if (event.kind == LayerEvent::Kind::kRouted) lists->Request(event.routing.counts);
      if (event.kind == LayerEvent::Kind::kEvicted) lists->Evicted(event.key.expert);
      if (event.kind == LayerEvent::Kind::kInserted) {
        lists->Inserted(event.key.expert, event.prefetched);
      }
    }
    int Victim(const VictimSnapshot& s) override { return arc->Victim(s); }
  } policy;
  policy.arc = MakeArc({CapacityRuleKind::kShallowFirst, 0, 0});
  policy.lists = &lists;
  const std::unique_ptr<CachePolicy> asked = CarryOut(&policy);
  VersionedStore store(&source, {{0, 0}}, std::move(pools),
                       MakeVirtualLink(&source, &clock, &profile), asked.get());

  PublishedArc published{capacity};
  PolicyContext context;
  context.model = &source.model();
  int hits = 0;
  std::vector<int32_t> counts(kKeys);
  const std::vector<int> trace = MakeTrace(kind, kKeys, 3000, 11);
  for (size_t i = 0; i < trace.size(); ++i) {
    INFO("request " << i << " of expert " << trace[i]);
    const ExpertKey key{0, trace[i]};
    RoutingView routing;
    std::fill(counts.begin(), counts.end(), 0);
    counts[key.expert] = 1;
    routing.tokens = routing.top_k = 1;
    routing.counts = counts;
    store.BeginLayerCall();
    policy.Observe(LayerEvent::Routed(context, routing));
    const bool hit = store.Latest(key).record != nullptr;
    if (!hit) {
      REQUIRE(store.StartLoad(key, 0, LoadReason::kDemand, context));
      while (store.Wait()) {
      }
    }
    store.Touch(key, 1);
    store.EndLayerCall(context);
    hits += hit;
    REQUIRE(published.Request(key.expert) == hit);
    REQUIRE(lists.Contents(ArcLists::kT1) == AsVector(published.t1));
    REQUIRE(lists.Contents(ArcLists::kT2) == AsVector(published.t2));
    REQUIRE(lists.Contents(ArcLists::kB1) == AsVector(published.b1));
    REQUIRE(lists.Contents(ArcLists::kB2) == AsVector(published.b2));
    REQUIRE(lists.p() == published.p);
  }
  CHECK(store.stats().policy_fallbacks == 0);
  if (kind == "zipf" && capacity == 12) CHECK(hits > 2000);
}

std::vector<int32_t> Counts(int experts, std::vector<std::pair<int, int>> tokens) {
  std::vector<int32_t> counts(experts, 0);
  for (const auto& [e, n] : tokens) counts[e] = n;
  return counts;
}

TEST_CASE("a scan does not wash the often used ones out") {
  constexpr int kKeys = 64, kHot = 6, kCapacity = 10;
  ArcLists arc(kKeys, kCapacity);
  std::vector<uint8_t> live(kKeys, 0);
  std::deque<int> lru;
  int arc_hits = 0, lru_hits = 0, held = 0;
  std::mt19937_64 rng(5);
  int scan = 0;
  for (int t = 0; t < 4000; ++t) {
    const int x = t % 3 == 0 ? kHot + scan++ % (kKeys - kHot) : static_cast<int>(rng() % kHot);
    arc.Request(Counts(kKeys, {{x, 1}}));
    arc_hits += live[x];
    if (!live[x]) {
      if (held == kCapacity) {
        const int victim = arc.Victim(x, live);
        arc.Evicted(victim);
        live[victim] = 0;
        --held;
      }
      arc.Inserted(x, false);
      live[x] = 1;
      ++held;
    }
    const auto it = std::find(lru.begin(), lru.end(), x);
    lru_hits += it != lru.end();
    if (it != lru.end()) lru.erase(it);
    lru.push_back(x);
    if (static_cast<int>(lru.size()) > kCapacity) lru.pop_front();
  }
  // All hot requests hit, which is two thirds of all; LRU loses some of them.
  CHECK(arc_hits > 2650);
  CHECK(lru_hits < 2600);
}

TEST_CASE("experts of one call count as requested in ascending popularity") {
  ArcLists arc(8, 8);
  arc.Request(Counts(8, {{0, 5}, {1, 1}, {2, 9}}));
  for (const int e : {2, 0, 1}) arc.Inserted(e, false);  // as they arrive: most popular first
  CHECK(arc.Contents(ArcLists::kT1) == std::vector<int>{1, 0, 2});
  arc.Request(Counts(8, {{0, 3}, {2, 1}}));
  CHECK(arc.Contents(ArcLists::kT1) == std::vector<int>{1});
  CHECK(arc.Contents(ArcLists::kT2) == std::vector<int>{2, 0});
}

TEST_CASE("a prefetch is no request until it is used, and leaves first when it was not") {
  const std::vector<uint8_t> all(8, 1);
  ArcLists arc(8, 3);
  for (const int e : {0, 1}) {
    arc.Request(Counts(8, {{e, 1}}));
    arc.Inserted(e, false);
  }
  arc.Inserted(2, true);
  CHECK(arc.list(2) == ArcLists::kPrefetched);
  // Fresh: the layer it was brought for has not been routed yet.
  CHECK(arc.Victim(3, all) == 0);
  arc.Request(Counts(8, {{2, 1}}));
  CHECK(arc.list(2) == ArcLists::kT1);

  // Expert 0 becomes a ghost of B1 (while T2 is not empty, or it would just be forgotten), a
  // prefetch brings it back: p moves at its use, not before.
  arc.Request(Counts(8, {{1, 1}}));
  arc.Evicted(0);
  REQUIRE(arc.list(0) == ArcLists::kB1);
  arc.Inserted(0, true);
  CHECK(arc.p() == 0);
  arc.Request(Counts(8, {{0, 1}}));
  CHECK(arc.p() == 1);
  CHECK(arc.list(0) == ArcLists::kT2);

  // Not used by the routing it was meant for: it goes before anybody else, and was never there.
  arc.Evicted(2);
  arc.Inserted(5, true);
  arc.Request(Counts(8, {{1, 1}}));
  CHECK(arc.Victim(6, all) == 5);
  arc.Evicted(5);
  CHECK(arc.list(5) == ArcLists::kNowhere);
  CHECK(arc.list(2) == ArcLists::kB1);
  arc.Inserted(2, true);
  arc.Evicted(2);
  CHECK(arc.list(2) == ArcLists::kB1);
}

TEST_CASE("a prefetch that comes after it was asked for is the miss that it was too late for") {
  const std::vector<uint8_t> all(8, 1);
  ArcLists arc(8, 3);
  arc.Request(Counts(8, {{0, 1}}));
  arc.Inserted(0, false);
  arc.Request(Counts(8, {{1, 1}}));  // while a prefetch of 1 is on its way
  arc.Inserted(1, true);
  CHECK(arc.Contents(ArcLists::kT1) == std::vector<int>{0, 1});
  // A routing without it: no reason to let it go before what was used less recently.
  arc.Request(Counts(8, {{2, 1}}));
  CHECK(arc.Victim(2, all) == 0);
  arc.Inserted(2, false);

  // A ghost's: p has moved at the request, and moves once.
  arc.Request(Counts(8, {{2, 1}}));
  arc.Evicted(0);
  REQUIRE(arc.list(0) == ArcLists::kB1);
  arc.Request(Counts(8, {{0, 1}}));
  CHECK(arc.p() == 1);
  arc.Inserted(0, true);
  CHECK(arc.list(0) == ArcLists::kT2);
  arc.Request(Counts(8, {{0, 1}}));
  CHECK(arc.p() == 1);

  // Asked for, never loaded, and predicted later: a prefetch like any other.
  arc.Request(Counts(8, {{5, 1}}));
  arc.Request(Counts(8, {{1, 1}}));
  arc.Inserted(5, true);
  CHECK(arc.list(5) == ArcLists::kPrefetched);
}

TEST_CASE("experts in use are passed over") {
  ArcLists arc(8, 3);
  for (const int e : {0, 1, 2}) {
    arc.Request(Counts(8, {{e, 1}}));
    arc.Inserted(e, false);
  }
  arc.Request(Counts(8, {{2, 1}}));
  std::vector<uint8_t> allowed(8, 1);
  CHECK(arc.Victim(4, allowed) == 0);
  allowed[0] = 0;
  CHECK(arc.Victim(4, allowed) == 1);
  allowed[1] = 0;
  CHECK(arc.Victim(4, allowed) == 2);
  allowed[2] = 0;
  CHECK(arc.Victim(4, allowed) == -1);
}

TEST_CASE("the lists keep their bounds whatever comes and goes") {
  constexpr int kExperts = 20;
  std::mt19937_64 rng(3);
  int capacity = 6;
  ArcLists arc(kExperts, capacity);
  std::vector<uint8_t> live(kExperts, 0);
  const auto size = [&](ArcLists::List list) { return arc.size(list); };
  for (int i = 0; i < 20000; ++i) {
    const int held = static_cast<int>(std::count(live.begin(), live.end(), 1));
    const int e = static_cast<int>(rng() % kExperts);
    switch (rng() % 5) {
      case 0: {
        std::vector<int32_t> counts(kExperts, 0);
        for (int j = 0; j < 3; ++j) counts[rng() % kExperts] += 1;
        arc.Request(counts);
        break;
      }
      case 1:
      case 2:  // up to two over the capacity, as a layer that borrows
        if (!live[e] && held < capacity + 2) {
          arc.Inserted(e, rng() % 2 == 0);
          live[e] = 1;
        }
        break;
      case 3:
        if (held > 0) {
          const int victim = arc.Victim(e, live);
          REQUIRE(victim >= 0);
          REQUIRE(live[victim]);
          arc.Evicted(victim);
          live[victim] = 0;
        }
        break;
      case 4:
        if (rng() % 50 == 0) arc.SetCapacity(capacity = static_cast<int>(rng() % 9));
        break;
    }
    for (int x = 0; x < kExperts; ++x) {
      const ArcLists::List list = arc.list(x);
      const bool known_live =
          list == ArcLists::kT1 || list == ArcLists::kT2 || list == ArcLists::kPrefetched;
      REQUIRE(known_live == (live[x] != 0));
    }
    REQUIRE(arc.p() >= 0);
    REQUIRE(arc.p() <= capacity);
    if (size(ArcLists::kT1) + size(ArcLists::kT2) <= capacity) {
      REQUIRE(size(ArcLists::kT1) + size(ArcLists::kB1) <= capacity);
      REQUIRE(size(ArcLists::kT1) + size(ArcLists::kT2) + size(ArcLists::kB1) +
                  size(ArcLists::kB2) <=
              2 * capacity);
    }
  }
}

}  // namespace
}  // namespace moert
