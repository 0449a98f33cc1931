// What the scheduler asks a placement policy with: times of this machine, corrected by measurement.
#include "moert/scheduler.h"

#include <cmath>

#include "base/clock.h"
#include "store/block_pool.h"
#include "store/link_estimate.h"
#include "store/transfer_queue.h"
#include "strategies/builtin.h"
#include "tests/support/catch.h"
#include "tests/support/synthetic_source.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

constexpr int kExperts = 8;

/// Gives everything to the CPU, and keeps what it was asked.
struct AllToCpu final : PlacementPolicy {
  std::vector<MissView> misses;
  absl::string_view name() const override { return "all-to-cpu"; }
  std::vector<Placement> Place(const PlacementSnapshot& snapshot) override {
    misses.assign(snapshot.misses.begin(), snapshot.misses.end());
    return std::vector<Placement>(misses.size(), Placement::kCpu);
  }
};

struct Fixture {
  SyntheticSource source{SyntheticShape{1, kExperts, 2, 16, 16, 0}};
  VirtualClock clock;
  HardwareProfile profile;
  LinkEstimate link{&profile};
  EngineStats stats;
  BudgetTracker budget{int64_t{1} << 20};
  std::unique_ptr<ResidencyPolicy> residency = MakeLru();
  std::unique_ptr<ExpertStore> store;
  AllToCpu policy;
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
    store = std::make_unique<ExpertStore>(
        &source, std::vector<ServedVersion>{{0, 0}}, std::move(pools),
        MakeVirtualLink(&source, &clock, &profile), residency.get(), &stats);
  }
  Scheduler Make(const std::string& version) {
    CpuBeside cpu;
    cpu.can_compute = [](ExpertKey, int64_t) { return true; };
    cpu.link = &link;
    cpu.version = version;
    return Scheduler(&source.model(), &policy, &profile, store.get(), &stats, cpu);
  }
  /// What an expert of `tokens` tokens is said to take the CPU.
  int64_t CpuNs(Scheduler* scheduler, int tokens) {
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
    context.phase = Phase::kDecode;
    scheduler->Plan(context, 0, routing, &plan);
    REQUIRE(policy.misses.size() == 1);
    CHECK(plan.cpu == std::vector<int32_t>{3});
    CHECK(plan.cpu_ns == policy.misses[0].cpu_ns);
    return policy.misses[0].cpu_ns;
  }
};

TEST_CASE("time on the CPU: by tokens and version, and as measured") {
  Fixture f;
  const auto bytes = static_cast<double>(f.source.layout(0, 0, 0).bytes);
  Scheduler slow = f.Make("slow");
  CHECK(f.CpuNs(&slow, 1) == Approx(2 * bytes).margin(2));
  Scheduler scheduler = f.Make("other");
  CHECK(f.CpuNs(&scheduler, 1) == Approx(bytes).margin(2));
  CHECK(f.CpuNs(&scheduler, 3) == Approx(2 * bytes).margin(2));
  // The first measurement counts whole, later ones by and by.
  f.CpuNs(&scheduler, 1);
  scheduler.Took(f.plan, std::llround(1.5 * bytes));
  CHECK(f.CpuNs(&scheduler, 1) == Approx(1.5 * bytes).epsilon(0.01));
  for (int i = 0; i < 200; ++i) {
    f.CpuNs(&scheduler, 1);
    scheduler.Took(f.plan, std::llround(3 * bytes));
  }
  CHECK(f.CpuNs(&scheduler, 1) == Approx(3 * bytes).epsilon(0.01));
}

TEST_CASE("a thread that was interrupted is no slow CPU") {
  Fixture f;
  Scheduler scheduler = f.Make("other");
  const int64_t usual = f.CpuNs(&scheduler, 1);
  scheduler.Took(f.plan, usual);
  f.CpuNs(&scheduler, 1);
  scheduler.Took(f.plan, 100 * usual);
  CHECK(f.CpuNs(&scheduler, 1) <= static_cast<int64_t>(1.06 * static_cast<double>(usual)));
}

}  // namespace
}  // namespace moert
