// Layers that give each other slots while the blocks are lent (kernels/cuda/cache/serve_misses.h,
// SlotLenders): no slot is lost or held twice, fewer experts are missing, and the store takes back
// what has moved.
#include <algorithm>
#include <numeric>
#include <random>

#include "kernels/cuda/cache/serve_misses.h"
#include "store/block_pool.h"
#include "store/residency/cache_policy.h"
#include "store/versioned_store.h"
#include "support/catch.h"
#include "support/served_call.h"
#include "support/synthetic_source.h"
#include "transfer/transfer_queue.h"

namespace moert {
namespace {

constexpr int kLayers = 5, kExperts = 24, kTopK = 3;

/// Layers as a device has them: every layer's experts, and a place a slot.
struct Layers {
  struct One {
    cuda::ServedLayer state;
    std::vector<cuda::ServedExpert> rows = std::vector<cuda::ServedExpert>(kExperts);
    std::vector<uint8_t> there = std::vector<uint8_t>(kExperts, 0);
    std::vector<int> block = std::vector<int>(kExperts, -1);  // by place
    std::vector<ExpertUse> use = std::vector<ExpertUse>(kExperts);
  };
  std::vector<One> layers = std::vector<One>(kLayers);
  std::vector<uint8_t> memory = std::vector<uint8_t>(kLayers * kExperts);
  bool give;
  int64_t moved = 0, misses = 0;

  Layers(int slots, bool gives) : give(gives) {
    for (int s = 0; s < slots; ++s) {
      One& layer = layers[static_cast<size_t>(s % kLayers)];
      layer.there[static_cast<size_t>(layer.state.slots)] = 1;
      layer.block[static_cast<size_t>(layer.state.slots++)] = s;
    }
    for (One& layer : layers) layer.state.lent = 1;
  }

  /// A slot of another layer for one that is worth `gain` in layer l: its place there, or -1.
  int Borrow(int l, double gain) {
    uint64_t least = cuda::kNobodyLends;
    for (int d = 0; d < kLayers; ++d) {
      least =
          std::min(least, cuda::LenderKey(layers[static_cast<size_t>(d)].state, true, d, l, kTopK));
    }
    One& mine = layers[static_cast<size_t>(l)];
    const auto hole = std::find(mine.there.begin(), mine.there.end(), 0);
    if (hole == mine.there.end() || !cuda::Borrows(least, gain)) return -1;
    One& lender = layers[static_cast<size_t>(least & 0xffffffff)];
    REQUIRE(&lender != &mine);
    const int from = lender.state.spare_slot;
    const auto to = static_cast<size_t>(hole - mine.there.begin());
    REQUIRE(lender.rows[static_cast<size_t>(lender.state.spare_expert)].slot == from);
    lender.rows[static_cast<size_t>(lender.state.spare_expert)] = {};
    mine.block[to] = std::exchange(lender.block[static_cast<size_t>(from)], -1);
    mine.there[to] = 1;
    lender.there[static_cast<size_t>(from)] = 0;
    lender.state.spare_at = nullptr;
    --lender.state.slots;
    ++mine.state.slots;
    ++moved;
    return static_cast<int>(to);
  }

  void Call(int l, const std::vector<int32_t>& counts) {
    One& mine = layers[static_cast<size_t>(l)];
    ++mine.state.calls;
    std::vector<double> worth(kExperts);
    const auto call = ExpertUse::Call::Of(mine.state.calls, /*tokens=*/1);
    for (int e = 0; e < kExperts; ++e) {
      const int used = counts[static_cast<size_t>(e)] > 0 ? 1 : 0;
      mine.use[static_cast<size_t>(e)].Add(call, used, used);
      worth[static_cast<size_t>(e)] = mine.use[static_cast<size_t>(e)].Worth();
    }
    const auto borrow = [&](double gain) { return Borrow(l, gain); };
    misses += test::ServeCall(counts, kExperts, ++mine.state.tick, &mine.rows, worth.data(),
                              &mine.there, give ? test::BorrowSlot(borrow) : nullptr)
                  .misses;
    uint64_t spare = cuda::kNobodyLends;
    for (int e = 0; e < kExperts; ++e) {
      if (mine.rows[static_cast<size_t>(e)].slot < 0) continue;
      spare = std::min(spare, cuda::LendingKey(static_cast<float>(worth[static_cast<size_t>(e)]),
                                               static_cast<uint32_t>(e)));
    }
    if (spare == cuda::kNobodyLends) return;
    mine.state.spare_expert = static_cast<int32_t>(spare & 0xffffffff);
    mine.state.spare_worth =
        static_cast<float>(worth[static_cast<size_t>(mine.state.spare_expert)]);
    mine.state.spare_slot = mine.rows[static_cast<size_t>(mine.state.spare_expert)].slot;
    mine.state.spare_at = memory.data() + mine.block[static_cast<size_t>(mine.state.spare_slot)];
  }

  /// Every slot is in one place, and every expert in a slot that is there, alone.
  void Check(int slots) const {
    std::vector<int> seen(static_cast<size_t>(slots), 0);
    for (const One& layer : layers) {
      int there = 0;
      std::vector<int> held(kExperts, 0);
      for (int s = 0; s < kExperts; ++s) {
        REQUIRE((layer.there[static_cast<size_t>(s)] != 0) ==
                (layer.block[static_cast<size_t>(s)] >= 0));
        if (layer.there[static_cast<size_t>(s)] == 0) continue;
        ++there;
        ++seen[static_cast<size_t>(layer.block[static_cast<size_t>(s)])];
      }
      for (const cuda::ServedExpert& row : layer.rows) {
        if (row.slot < 0) continue;
        REQUIRE(layer.there[static_cast<size_t>(row.slot)] != 0);
        REQUIRE(++held[static_cast<size_t>(row.slot)] == 1);
      }
      REQUIRE(there == layer.state.slots);
      REQUIRE(there >= std::min(kTopK, slots / kLayers));
    }
    REQUIRE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
  }
};

/// Layers use 2, 6, 10, ... of their experts more than the others.
std::vector<int32_t> Draw(std::mt19937* rng, int layer) {
  std::vector<int32_t> counts(kExperts, 0);
  const auto favoured = static_cast<uint32_t>(2 + 4 * layer);
  for (int k = 0; k < kTopK; ++k) {
    const uint32_t of = (*rng)() % 20 == 0 ? kExperts : favoured;
    counts[(*rng)() % of] = 1;
  }
  return counts;
}

TEST_CASE("slots go where they are worth most, and none is lost") {
  for (const int slots : {20, 40, 60, 90}) {
    INFO(slots);
    Layers own(slots, false), given(slots, true);
    std::mt19937 a(3), b(3);
    for (int step = 0; step < 1500; ++step) {
      for (int l = 0; l < kLayers; ++l) {
        own.Call(l, Draw(&a, l));
        given.Call(l, Draw(&b, l));
        if (step % 100 == 0) given.Check(slots);
      }
    }
    given.Check(slots);
    CHECK(own.moved == 0);
    CHECK(given.moved > 0);
    CHECK(given.misses < own.misses);
  }
}

TEST_CASE("with a slot for every expert, and with hardly any, nothing moves") {
  for (const int slots : {kLayers * kExperts, kLayers * kTopK}) {
    Layers given(slots, true);
    std::mt19937 rng(5);
    for (int step = 0; step < 200; ++step) {
      for (int l = 0; l < kLayers; ++l) given.Call(l, Draw(&rng, l));
    }
    given.Check(slots);
    CHECK(given.moved == 0);
  }
}

TEST_CASE("the store takes back slots that have moved between layers") {
  constexpr int64_t kBlock = 1 << 16;
  constexpr int kSlots = 40;
  test::SyntheticShape shape;
  shape.layers = kLayers;
  shape.experts = kExperts;
  shape.top_k = kTopK;
  shape.shared_intermediate = 0;
  test::SyntheticSource source{shape};
  VirtualClock clock;
  HardwareProfile profile;
  BudgetTracker budget(int64_t{kLayers} * kExperts * kBlock);
  std::vector<std::unique_ptr<BlockPool>> pools(1);
  pools[0] = *MakeRamBlockPool({kBlock, kLayers * kExperts}, kSlots, &budget);
  const std::unique_ptr<CachePolicy> policy =
      MakeCachePolicy({.kind = ResidencyRuleKind::kWorth,
                       .shared_slots = true,
                       .capacity = {CapacityRuleKind::kMeasured}});
  VersionedStore store(&source, std::vector<ServedVersion>{{0, 0}}, std::move(pools),
                       MakeVirtualLink(&source, &clock, &profile), policy.get());
  std::mt19937 rng(11);
  for (int round = 0; round < 50; ++round) {
    std::vector<LentLayer> loans;
    REQUIRE(store.Lend(&loans));
    int64_t lent = 0;
    for (const LentLayer& loan : loans) lent += std::ssize(loan.slots);
    REQUIRE(lent == kSlots);
    for (int move = 0; move < 10; ++move) {
      LentLayer& from = loans[rng() % kLayers];
      LentLayer& to = loans[rng() % kLayers];
      if (&from == &to || std::ssize(from.slots) <= kTopK || std::ssize(to.slots) == kExperts)
        continue;
      LentSlot slot = from.slots.back();
      from.slots.pop_back();
      slot.expert = -1;
      to.slots.push_back(slot);
    }
    for (LentLayer& loan : loans) {
      std::vector<int32_t> experts(kExperts);
      std::iota(experts.begin(), experts.end(), 0);
      std::shuffle(experts.begin(), experts.end(), rng);
      for (size_t s = 0; s < loan.slots.size(); ++s) {
        loan.slots[s].expert = rng() % 8 == 0 ? -1 : experts[s];
        loan.slots[s].last_used = ++loan.tick;
      }
    }
    store.TakeBack(loans);
    for (int l = 0; l < kLayers; ++l) {
      const LayerResidency residency = store.Layer(l);
      for (int e = 0; e < kExperts; ++e) {
        const auto& slots = loans[static_cast<size_t>(l)].slots;
        const bool there = std::any_of(slots.begin(), slots.end(),
                                       [&](const LentSlot& slot) { return slot.expert == e; });
        REQUIRE((residency.usable[static_cast<size_t>(e)] != 0) == there);
      }
    }
  }
}

}  // namespace
}  // namespace moert
