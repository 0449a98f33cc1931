// The list of a prediction for a layer (predict_next.cuh), for drawn tables: experts that are
// likely wanted, or else the absent expert that is worth most.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "device_array.h"
#include "few_inputs.h"
#include "kernels/cuda/cache/served_prefetch.h"
#include "tests/support/catch.h"

namespace moert::cuda {
namespace {

using test::DeviceArray;

constexpr int kTopK = 4;

/// The decision about a token of a small layer, which wants four experts of which none is there,
/// and beside it, in the same launch, a prediction for another one. Returns how many it brings.
int DecideBeside(const PredictArgs& next) {
  constexpr int kExperts = 16, kShares = 4;
  std::vector<float> of_experts(kExperts, 0);
  for (int k = 0; k < kTopK; ++k) of_experts[static_cast<size_t>(3 * k + 1)] = 5;
  const DeviceArray<float> logits(of_experts);
  ServedLayer lent;
  lent.lent = 1;
  lent.slots = 2;
  std::vector<uint8_t*> places(kExperts, nullptr);
  for (int s = 0; s < lent.slots; ++s) places[s] = reinterpret_cast<uint8_t*>(uintptr_t{64} << s);
  const DeviceArray<ServedLayer> layer(std::vector<ServedLayer>{lent});
  const DeviceArray<ServedExpert> rows(std::vector<ServedExpert>(kExperts, ServedExpert{}));
  const DeviceArray<ServedRecord> records(std::vector<ServedRecord>(kExperts, ServedRecord{}));
  const DeviceArray<uint8_t*> slots(places);
  const DeviceArray<DeviceFormat> formats(std::vector<DeviceFormat>(1));
  const test::TilesOnDevice ready(kTopK + 1, kShares), late(kTopK + 1, kShares);
  const test::DecisionOnDevice decision(kExperts, kTopK, 1);
  DeviceRouting routing;
  routing.num_experts = kExperts;
  routing.top_k = kTopK;
  const RouteFewArgs route = decision.Route(routing, logits.get());
  ServeMissesArgs args = decision.Serve();
  args.layer = layer.get();
  args.rows = rows.get();
  args.records = records.get();
  args.slots = slots.get();
  test::DecisionOnDevice::MakeTiles(formats.get(), ready, late, kShares, &args);
  REQUIRE(PredictsBeside(route, args, next));
  REQUIRE(LaunchRouteAndServe(route, args, nullptr, &next) == 0);
  return decision.num_copies.Get()[0];
}

/// A layer while its blocks are lent, and the logits of a token that wants experts which are there.
struct Table {
  int experts = 0;
  std::vector<ServedExpert> rows;
  std::vector<ExpertUse> use;
  std::vector<uint8_t*> slots;
  std::vector<int> content;  // of slots: the expert; -1: nobody
  std::vector<float> logits;
  std::vector<uint8_t> wanted;
  std::vector<ServedRecord> records;

  Table(int num_experts, std::mt19937* rng)
      : experts(num_experts),
        rows(num_experts),
        use(num_experts),
        slots(num_experts, nullptr),
        content(num_experts, -1),
        logits(num_experts, -10),
        wanted(num_experts, 0),
        records(num_experts) {
    std::vector<int> order(experts);
    for (int e = 0; e < experts; ++e) order[e] = e;
    std::shuffle(order.begin(), order.end(), *rng);
    const int there = kTopK + 1 + static_cast<int>((*rng)() % (experts / 2));
    const int free = (*rng)() % 2 == 0 ? static_cast<int>((*rng)() % 3) : 0;
    for (int s = 0; s < there + free; ++s) {
      slots[s] = reinterpret_cast<uint8_t*>(uintptr_t{4096} * (s + 1));
      if (s >= there) continue;
      content[s] = order[s];
      rows[order[s]] = {static_cast<int64_t>((*rng)() % 20), 1, s};
      if (s < kTopK) logits[order[s]] = 10;
      if (s < kTopK) wanted[order[s]] = 1;
    }
    // No two are about 1.2 times as much worth as each other, where rounding would tell.
    const bool settled = (*rng)() % 2 == 0;  // who is worth most is there
    for (int e = 0; e < experts; ++e) {
      const double less = settled && rows[e].slot < 0 ? 0.02 : 1;
      const double worth = less * std::pow(1.07, static_cast<double>((*rng)() % 50));
      use[e] = {worth, worth, worth, 1};
      records[e] = {reinterpret_cast<const uint8_t*>(uintptr_t{64} * (e + 1)), 48};
    }
  }

  /// The expert that is brought for its worth; -1: nobody.
  PrefetchedRecord Fill() const {
    PrefetchedRecord fill;
    uint64_t most = kNobodyLends;
    std::vector<LeavingKey> keys(experts);
    for (int e = 0; e < experts; ++e) {
      const double worth = use[e].Worth();
      const uint64_t key = LendingKey(static_cast<float>(-worth), static_cast<uint32_t>(e));
      if (rows[e].slot < 0) most = std::min(most, key);
      if (rows[e].slot >= 0 && wanted[e] == 0) keys[e] = KeyOfLeaving(rows[e], worth);
    }
    for (int s = experts - 1; s >= 0; --s) {
      if (slots[s] != nullptr && content[s] < 0) fill.slot = s;
    }
    double leaving = 0;
    for (int e = 0; e < experts && fill.slot < 0; ++e) {
      if (rows[e].slot < 0 || wanted[e] != 0 || VictimRank(keys.data(), experts, e) != 0) continue;
      fill.victim = e;
      fill.slot = rows[e].slot;
      leaving = use[e].Worth();
    }
    if (ClearlyWorthMore(use[NumberOf(most)].Worth(), leaving)) fill.expert = NumberOf(most);
    return fill;
  }

  /// elsewhere: calls had misses answered elsewhere; becomes whether a next look is worth it.
  /// beside: a decision.
  LayerPrefetch Predict(bool fills, uint64_t* listed, bool elsewhere = true,
                        bool* looks_again = nullptr, bool beside = false) const {
    ServedLayer layer;
    layer.tick = 20;
    layer.lent = 1;
    layer.calls = 20;
    layer.elsewhere = elsewhere ? 1 : 0;
    const auto n = static_cast<size_t>(experts);
    DeviceArray<float> scores(logits);
    DeviceArray<ServedLayer> layers(std::vector<ServedLayer>{layer});
    DeviceArray<ServedExpert> table(rows);
    const DeviceArray<ExpertUse> uses(use);
    const DeviceArray<ServedRecord> where(records);
    const DeviceArray<uint8_t*> places(slots);
    DeviceArray<ServedTally> tally(std::vector<ServedTally>(1));
    DeviceArray<LayerPrefetch> list(std::vector<LayerPrefetch>(1));
    const std::vector<HitCounts> nothing(kHitBins);
    DeviceArray<HitCounts> curve(nothing), all(nothing);
    DeviceArray<uint8_t> bins(n * kFewTokens);
    DeviceArray<uint32_t> want(std::vector<uint32_t>(n, 0));
    DeviceArray<PredictedCall> call(std::vector<PredictedCall>(1));
    PredictArgs args;
    args.routing.num_experts = experts;
    args.routing.top_k = kTopK;
    args.tokens = 1;
    args.scores = scores.get();
    args.layer = layers.get();
    args.rows = table.get();
    args.use = uses.get();
    args.records = where.get();
    args.slots = places.get();
    args.tally = tally.get();
    args.prefetch = list.get();
    args.curve = curve.get();
    args.all = all.get();
    args.bins = bins.get();
    args.wanted = want.get();
    args.call = call.get();
    args.fills = fills ? 1 : 0;
    if (beside) {
      CHECK(DecideBeside(args) == 2);
    } else {
      REQUIRE(LaunchPredictRecords(args, nullptr) == 0);
    }
    *listed = tally.Get().front().listed;
    if (looks_again != nullptr) *looks_again = layers.Get().front().elsewhere != 0;
    return list.Get().front();
  }
};

TEST_CASE("where nothing is predicted to be missing, the list has who is worth most") {
  std::mt19937 rng(7);
  int filled = 0, rested = 0, pushed_out = 0;
  for (const int experts : {32, 64, 128, 200, 512}) {
    for (int draw = 0; draw < 40; ++draw) {
      INFO(experts << " experts, draw " << draw);
      const Table table(experts, &rng);
      uint64_t listed = 0;
      CHECK(table.Predict(false, &listed).count == 0);
      const PrefetchedRecord expected = table.Fill();
      CHECK(table.Predict(true, &listed, /*elsewhere=*/false).count == 0);
      bool looks_again = false;
      const LayerPrefetch list = table.Predict(true, &listed, true, &looks_again);
      CHECK(listed == 0);  // prefetches alone
      CHECK((list.settled == 0) == (list.count > 0));
      CHECK(looks_again == (expected.expert >= 0));
      REQUIRE(list.count == (expected.expert >= 0 ? 1 : 0));
      ++(list.count == 0 ? rested : filled);
      if (list.count == 0) continue;
      const PrefetchedRecord& record = list.records[0];
      CHECK(record.fill == 1);
      CHECK(record.expert == expected.expert);
      CHECK(record.slot == expected.slot);
      CHECK(record.victim == expected.victim);
      CHECK(record.state == kPrefetchListed);
      CHECK(record.done == 0);
      CHECK(record.copy.from == table.records[static_cast<size_t>(expected.expert)].host);
      CHECK(record.copy.to == table.slots[static_cast<size_t>(expected.slot)]);
      pushed_out += record.victim >= 0;
    }
  }
  CHECK(filled > 20);
  CHECK(rested > 0);
  CHECK(pushed_out > 20);
}

TEST_CASE("what is likely wanted is listed alone") {
  std::mt19937 rng(9);
  int listed_alone = 0;
  for (int draw = 0; draw < 40; ++draw) {
    Table table(64, &rng);
    const auto absent = std::find_if(table.rows.begin(), table.rows.end(),
                                     [](const ServedExpert& row) { return row.slot < 0; });
    const auto e = static_cast<int32_t>(absent - table.rows.begin());
    table.logits[static_cast<size_t>(e)] = 10;
    table.use[static_cast<size_t>(e)] = {100, 100, 100, 1};  // no victim is worth more
    uint64_t listed = 0;
    const LayerPrefetch list = table.Predict(true, &listed);
    REQUIRE(list.count == 1);
    CHECK(list.records[0].expert == e);
    CHECK(list.records[0].fill == 0);
    listed_alone += listed == 1;
  }
  CHECK(listed_alone == 40);
}

TEST_CASE("a decision beside a prediction changes nothing of it") {
  std::mt19937 rng(11);
  int listed_some = 0;
  for (const int experts : {32, 64, 100, 128}) {
    for (int draw = 0; draw < 40; ++draw) {
      INFO(experts << " experts, draw " << draw);
      Table table(experts, &rng);
      for (int e = 0; e < experts && draw % 2 == 0; e += 3) {
        table.logits[static_cast<size_t>(e)] = static_cast<float>(rng() % 20);
      }
      uint64_t listed = 0, listed_beside = 0;
      const LayerPrefetch alone = table.Predict(false, &listed);
      const LayerPrefetch beside =
          table.Predict(false, &listed_beside, true, nullptr, /*beside=*/true);
      CHECK(listed_beside == listed);
      CHECK(beside.settled == alone.settled);
      REQUIRE(beside.count == alone.count);
      for (int i = 0; i < alone.count; ++i) {
        const PrefetchedRecord &mine = beside.records[i], &theirs = alone.records[i];
        CHECK(mine.expert == theirs.expert);
        CHECK(mine.victim == theirs.victim);
        CHECK(mine.slot == theirs.slot);
        CHECK(mine.copy.from == theirs.copy.from);
        CHECK(mine.copy.to == theirs.copy.to);
      }
      listed_some += listed > 0;
    }
  }
  CHECK(listed_some > 20);
}

}  // namespace
}  // namespace moert::cuda
