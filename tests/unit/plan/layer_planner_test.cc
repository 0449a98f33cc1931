// The scheduler's question to a placement policy: times of this machine, corrected by measurement.
#include "plan/layer_planner.h"

#include <cmath>
#include <limits>

#include "base/clock.h"
#include "store/block_pool.h"
#include "store/residency/cache_policy.h"
#include "tests/support/catch.h"
#include "tests/support/synthetic_source.h"
#include "transfer/link_pacer.h"
#include "transfer/transfer_queue.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

constexpr int kExperts = 8;

/// Gives to the CPU what takes it at most so long, and keeps what it was asked.
struct FasterToCpu final : PlacementPolicy {
  std::vector<MissView> misses;
  int64_t most_ns = std::numeric_limits<int64_t>::max();
  PlacementDecision Place(const PlacementSnapshot& snapshot) override {
    misses.assign(snapshot.misses.begin(), snapshot.misses.end());
    PlacementDecision decision;
    for (const MissView& miss : misses) {
      decision.placements.push_back(miss.cpu_ns <= most_ns ? Placement::kCpu : Placement::kLoad);
    }
    return decision;
  }
};

struct Fixture {
  SyntheticSource source{SyntheticShape{1, kExperts, 2, 16, 16, 0}};
  VirtualClock clock;
  HardwareProfile profile;
  LinkEstimate link{&profile};
  BudgetTracker budget{int64_t{1} << 20};
  std::unique_ptr<CachePolicy> residency = MakeCachePolicy({});
  std::unique_ptr<VersionedStore> store;
  FasterToCpu policy;
  LayerPlan plan;

  Fixture() {
    profile.cpu_weight_bytes_per_s = 1e9;
    profile.cpu_expert_latency_ns = 0;
    profile.cpu_next_token_share = 0.5;
    HardwareProfile::VersionRates rates;
    rates.version = "slow";
    rates.rates = {{1, 0.5e9}};
    profile.cpu_compute = {rates};
    const int64_t block =
        (source.layout(0, 0, 0).bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
    std::vector<std::unique_ptr<BlockPool>> pools(1);
    pools[0] = *MakeRamBlockPool({block, kExperts}, kExperts, &budget);
    store = std::make_unique<VersionedStore>(
        &source, std::vector<ServedVersion>{{0, 0}}, std::move(pools),
        MakeVirtualLink(&source, &clock, &profile), residency.get());
  }
  LayerPlanner Make(const std::string& version) {
    CpuMisses cpu;
    cpu.can_compute = [](ExpertKey, int64_t) { return true; };
    cpu.link = &link;
    cpu.version = version;
    return LayerPlanner(&policy, &profile, store.get(), cpu);
  }
  /// The CPU's modelled time for an expert of `tokens` tokens.
  int64_t CpuNs(LayerPlanner* scheduler, int tokens, Phase phase = Phase::kDecode) {
    RoutingResult routing;
    routing.tokens = tokens;
    routing.top_k = 1;
    routing.num_experts = kExperts;
    routing.counts.assign(kExperts, 0);
    routing.counts[3] = tokens;
    routing.ids.assign(tokens, 3);
    routing.weights.assign(tokens, 1.0f);
    PolicyContext context;
    context.model = &source.model();
    context.phase = phase;
    scheduler->Plan(context, 0, routing, &plan);
    REQUIRE(policy.misses.size() == 1);
    const bool on_cpu = policy.misses[0].cpu_ns <= policy.most_ns;
    CHECK(plan.cpu == (on_cpu ? std::vector<int32_t>{3} : std::vector<int32_t>{}));
    CHECK(plan.cpu_ns == (on_cpu ? policy.misses[0].cpu_ns : 0));
    return policy.misses[0].cpu_ns;
  }
};

TEST_CASE("time on the CPU: by tokens and version, and as measured") {
  Fixture f;
  const auto bytes = static_cast<double>(f.source.layout(0, 0, 0).bytes);
  LayerPlanner slow = f.Make("slow");
  CHECK(f.CpuNs(&slow, 1) == Approx(2 * bytes).margin(2));
  LayerPlanner scheduler = f.Make("other");
  CHECK(f.CpuNs(&scheduler, 1) == Approx(bytes).margin(2));
  CHECK(f.CpuNs(&scheduler, 3) == Approx(2 * bytes).margin(2));
  // The first measurement counts whole, later ones by and by.
  f.CpuNs(&scheduler, 1);
  scheduler.ObserveCpuTime(f.plan, std::llround(1.5 * bytes));
  CHECK(f.CpuNs(&scheduler, 1) == Approx(1.5 * bytes).epsilon(0.01));
  for (int i = 0; i < 200; ++i) {
    f.CpuNs(&scheduler, 1);
    scheduler.ObserveCpuTime(f.plan, std::llround(3 * bytes));
  }
  CHECK(f.CpuNs(&scheduler, 1) == Approx(3 * bytes).epsilon(0.01));
}

TEST_CASE("what came while the CPU computed it is no fill") {
  Fixture f;
  LayerPlanner scheduler = f.Make("other");
  PolicyContext context;
  context.model = &f.source.model();
  f.CpuNs(&scheduler, 1);  // expert 3 is the CPU's
  f.plan.backfill = Backfill::kAlways;
  const auto fills = [&] {
    scheduler.Backfill(context, f.plan);
    while (f.store->Wait()) {
    }
    CHECK(f.store->stats().loads == scheduler.stats().fills);
    return scheduler.stats().fills;
  };
  CHECK(fills() == 1);
  CHECK(fills() == 1);  // it is there
}

TEST_CASE("a thread that was interrupted is no slow CPU") {
  Fixture f;
  LayerPlanner scheduler = f.Make("other");
  const int64_t usual = f.CpuNs(&scheduler, 1);
  scheduler.ObserveCpuTime(f.plan, usual);
  f.CpuNs(&scheduler, 1);
  scheduler.ObserveCpuTime(f.plan, 100 * usual);
  CHECK(f.CpuNs(&scheduler, 1) <= static_cast<int64_t>(1.06 * static_cast<double>(usual)));
}

TEST_CASE("a CPU that is thought slow is tried again, now and then") {
  Fixture f;
  LayerPlanner scheduler = f.Make("other");
  const int64_t usual = f.CpuNs(&scheduler, 1);
  f.policy.most_ns = 2 * usual;  // what a load takes
  // `real` times as slow as usual: how many of 2000 calls the CPU gets.
  const auto given = [&](double real, Phase phase) {
    int cpu = 0;
    for (int i = 0; i < 2000; ++i) {
      f.CpuNs(&scheduler, 1, phase);
      if (f.plan.cpu.empty()) continue;
      ++cpu;
      scheduler.ObserveCpuTime(f.plan, std::llround(real * static_cast<double>(usual)));
    }
    return cpu;
  };
  CHECK(given(3, Phase::kDecode) > 2);  // one is slow, some trials follow
  CHECK(given(3, Phase::kDecode) < 60);
  CHECK(given(3, Phase::kPrefill) <= 1);
  CHECK(given(1, Phase::kDecode) > 1500);  // found out, and used from then on
}

}  // namespace
}  // namespace moert
