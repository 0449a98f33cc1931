// Records that are prefetched into lent blocks (kernels/cuda/cache/serve_misses.h): whatever a list
// has come to when its layer is routed, no slot has two experts and none that is incomplete is
// read.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cuda/cache/serve_misses.h"
#include "rules/hit_curve.h"
#include "support/catch.h"

namespace moert::cuda {
namespace {

constexpr int kExperts = 24, kSlots = 10;

/// A layer's rows, and which record is complete in each slot; -1: none.
struct Layer {
  std::vector<ServedExpert> rows = std::vector<ServedExpert>(kExperts);
  std::vector<int> content = std::vector<int>(kSlots, -1);
};

/// Fills some of the slots.
Layer Draw(std::mt19937* rng) {
  Layer layer;
  for (int s = 0; s < kSlots; ++s) {
    if ((*rng)() % 5 == 0) continue;
    const int e = 2 * s + static_cast<int>((*rng)() % 2);
    layer.rows[e] = {static_cast<int64_t>((*rng)() % 9), 1, s};
    layer.content[s] = e;
  }
  return layer;
}

/// Absent experts, each for a slot of its own.
std::vector<PrefetchedRecord> List(const Layer& layer, std::mt19937* rng) {
  std::vector<int> slots(kSlots), absent;
  for (int s = 0; s < kSlots; ++s) slots[s] = s;
  std::shuffle(slots.begin(), slots.end(), *rng);
  for (int e = 0; e < kExperts; ++e) {
    if (layer.rows[e].slot < 0) absent.push_back(e);
  }
  std::vector<PrefetchedRecord> list((*rng)() % (kMostPrefetched + 1));
  for (size_t i = 0; i < list.size(); ++i) {
    list[i].expert = absent[i];
    list[i].slot = slots[i];
    list[i].victim = layer.content[slots[i]];
  }
  return list;
}

TEST_CASE("a list that is settled leaves every slot to one expert at most, and to a whole record") {
  std::mt19937 rng(5);
  int seen[4] = {};
  for (int round = 0; round < 20000; ++round) {
    Layer layer = Draw(&rng);
    const std::vector<ServedExpert> before = layer.rows;
    for (PrefetchedRecord& record : List(layer, &rng)) {
      const bool wanted = rng() % 2 == 0;
      // How far the copies have come: in any state that they and the decision can leave.
      const bool begun = rng() % 2 == 0;
      const int done = begun ? static_cast<int>(rng() % (kCopyCtas + 1)) : 0;
      if (begun) layer.content[record.slot] = done == kCopyCtas ? record.expert : -1;
      const int32_t state = begun ? (!wanted && rng() % 2 == 0 ? kPrefetchStopped : kPrefetchBegun)
                                  : (rng() % 2 == 0 ? kPrefetchListed : kPrefetchDropped);
      const PrefetchEnd end = EndOfPrefetch(state, done, wanted);
      ++seen[static_cast<int>(end)];
      if (end == PrefetchEnd::kUnderWay) {
        CHECK(wanted);
        layer.content[record.slot] = record.expert;  // before it is multiplied
      }
      SettlePrefetch(record, end, 9, layer.rows.data());
      if (!begun && record.victim >= 0) {
        REQUIRE(layer.rows[record.victim].slot == before[record.victim].slot);
      }
    }
    std::vector<int> held(kSlots, 0);
    for (int e = 0; e < kExperts; ++e) {
      const int slot = layer.rows[e].slot;
      if (slot < 0) continue;
      REQUIRE(++held[slot] == 1);
      REQUIRE(layer.content[slot] == e);
    }
  }
  for (const int count : seen) CHECK(count > 100);
}

TEST_CASE("a prefetch pays where what it spares is more than the uses of whom it replaces") {
  CHECK(PrefetchPays(0.5, 0, 0.1, 0.1, 1));
  CHECK(PrefetchPays(0.2, 0, 0.3, 0.1, 1));      // worth more anyway
  CHECK(!PrefetchPays(0.2, 0, 0.05, 0.8, 1));    // whom many calls want
  CHECK(!PrefetchPays(0.5, 0, 0.0, 0.1, 0.01));  // a cache that hardly changes
  CHECK(PrefetchPays(1, 0, 0, 1, 0));
  CHECK(!PrefetchPays(0.3, 0.3, 0.1, 0.1, 1));  // the call will want the other one as well
  CHECK(PrefetchPays(0.9, 0.15, 0.1, 0.1, 1));
}

/// A layer whose misses are all answered low, so that nothing but fills comes in, one a call.
class FilledLayer {
 public:
  void Call(const std::vector<int32_t>& counts) {
    ++calls_;
    const auto call = ExpertUse::Call::Of(calls_, /*tokens=*/1);
    for (int e = 0; e < kExperts; ++e) {
      const int used = counts[e] > 0 ? 1 : 0;
      if (used > 0) ++(layer_.rows[e].slot >= 0 ? hits : low);
      if (used > 0 && layer_.rows[e].slot >= 0) layer_.rows[e].last_used = calls_;
      use_[e].Add(call, used, used);
    }
    PrefetchedRecord record;
    if (!Find(&record)) return;
    ++fills;
    layer_.content[record.slot] = record.expert;
    SettlePrefetch(record, PrefetchEnd::kArrived, calls_, layer_.rows.data());
  }

  int64_t hits = 0, low = 0, fills = 0;

 private:
  /// As predict_records.cu.
  bool Find(PrefetchedRecord* fill) const {
    uint64_t most = kNobodyLends;
    std::vector<LeavingKey> keys(kExperts);
    for (int e = 0; e < kExperts; ++e) {
      const double worth = use_[e].Worth();
      if (layer_.rows[e].slot >= 0) {
        keys[e] = KeyOfLeaving(layer_.rows[e], worth);
      } else {
        most = std::min(most, LendingKey(static_cast<float>(-worth), static_cast<uint32_t>(e)));
      }
    }
    if (most == kNobodyLends) return false;
    fill->expert = NumberOf(most);
    for (int s = 0; s < kSlots && fill->slot < 0; ++s) {
      if (layer_.content[s] < 0) fill->slot = s;
    }
    for (int e = 0; e < kExperts && fill->slot < 0; ++e) {
      if (layer_.rows[e].slot >= 0 && VictimRank(keys.data(), kExperts, e) == 0) fill->victim = e;
    }
    if (fill->victim >= 0) fill->slot = layer_.rows[fill->victim].slot;
    const double leaving = fill->victim < 0 ? 0 : use_[fill->victim].Worth();
    return ClearlyWorthMore(use_[fill->expert].Worth(), leaving);
  }

  Layer layer_;
  std::vector<ExpertUse> use_ = std::vector<ExpertUse>(kExperts);
  int64_t calls_ = 0;
};

TEST_CASE("fills bring what is used most, and rest when it is there") {
  std::mt19937 rng(11);
  for (const unsigned seldom : {0u, 1u}) {
    FilledLayer layer;
    // In nine of ten calls; the others in none or one.
    const auto call = [&](int first, int often) {
      std::vector<int32_t> counts(kExperts, 0);
      for (int e = 0; e < kExperts; ++e) {
        const bool most = e >= first && e < first + often;
        counts[e] = rng() % 10 < (most ? 9 : seldom) ? 1 : 0;
      }
      layer.Call(counts);
    };
    const int often = seldom == 0 ? kSlots : kSlots - 2;
    for (const int first : {0, 12}) {  // others are used more from then on
      const int64_t filled = layer.fills;
      for (int c = 0; c < 300; ++c) call(first, often);
      CHECK(layer.fills - filled >= often);
      const FilledLayer before = layer;
      for (int c = 0; c < 500; ++c) call(first, often);
      const auto hits = static_cast<double>(layer.hits - before.hits);
      const auto low = static_cast<double>(layer.low - before.low);
      if (seldom == 0) {
        CHECK(low == 0);
        CHECK(layer.fills == before.fills);
      } else {
        CHECK(hits > 0.8 * (hits + low));
      }
    }
  }
}

TEST_CASE("who comes for what it is worth is worth clearly more") {
  CHECK(ClearlyWorthMore(0.1, 0));  // a slot of nobody
  CHECK(!ClearlyWorthMore(0, 0));
  CHECK(!ClearlyWorthMore(0.11, 0.1));
  CHECK(ClearlyWorthMore(0.13, 0.1));
}

TEST_CASE("the more tokens, the likelier who makes room is wanted") {
  CHECK(LikelyWanted(1, 0.2) == 0.02);
  CHECK(LikelyWanted(8, 0.2) == Approx(0.16));
  CHECK(LikelyWanted(32, 0.2) == 0.2);
}

TEST_CASE("hits are remembered as long as they are of use") {
  HitCounts counts;
  CHECK(counts.Probability(0.3) == 0.3);
  for (int i = 0; i < 5000; ++i) counts.Add(1, 1);
  CHECK(counts.seen <= kHitMemory);
  CHECK(counts.Probability(0) > 0.98);
  for (int i = 0; i < 100; ++i) counts.Add(0, 40);  // several at once
  CHECK(counts.seen <= kHitMemory);
  CHECK(counts.Probability(0) < 0.05);
  HitCounts once, one_by_one;
  once.Add(3, 10);
  for (int i = 0; i < 10; ++i) one_by_one.Add(i < 3 ? 1 : 0, 1);
  CHECK(once.Probability(0.5) == one_by_one.Probability(0.5));
}

TEST_CASE("a bin's line says what its counts say") {
  std::mt19937 rng(3);
  for (int draw = 0; draw < 100; ++draw) {
    HitCounts counts, all;
    const auto seen = static_cast<double>(rng() % 50), more = static_cast<double>(rng() % 2000);
    counts.Add(seen * static_cast<double>(rng() % 5) / 4, seen);
    all.Add(more * static_cast<double>(rng() % 5) / 4, more);
    const HitLine line = HitLine::Of(counts, all);
    for (const float guess : {0.0F, 0.1F, 0.45F, 0.9F}) {
      CHECK(line.Probability(guess) ==
            Approx(counts.Probability(all.Probability(guess))).margin(1e-6));
    }
  }
}

TEST_CASE("bins of ratios are thirds of powers of two") {
  std::mt19937 rng(4);
  std::uniform_real_distribution<double> powers(-6, 6);
  int inner = 0;
  for (int draw = 0; draw < 10000; ++draw) {
    const auto ratio = static_cast<float>(std::exp2(powers(rng)));
    const double thirds = std::floor(3 * std::log2(static_cast<double>(ratio))) + kHitBins / 2;
    CHECK(HitBin(ratio) == std::min(std::max(thirds, 0.0), kHitBins - 1.0));
    inner += thirds > 0 && thirds < kHitBins - 1;
  }
  CHECK(inner > 5000);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  CHECK(HitBin(1) == kHitBins / 2);
  CHECK(HitBin(std::nextafter(1.0F, 0.0F)) == kHitBins / 2 - 1);
  for (const float least : {0.0F, -1.0F, 1e-40F, std::numeric_limits<float>::quiet_NaN()}) {
    CHECK(HitBin(least) == 0);
  }
  CHECK(HitBin(kInfinity) == kHitBins - 1);
  CHECK(GuessedHits(kInfinity) == Approx(0.9F));
  CHECK(GuessedHits(1) == Approx(0.45F));
}

}  // namespace
}  // namespace moert::cuda
