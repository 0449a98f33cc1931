// A Scheduler as a host uses it, with a store of its own.
#include "moert/scheduler.h"
#include "support/catch.h"

namespace moert {
namespace {

/// Gives the CPU what it computes before a transfer would have arrived.
struct Earliest final : PlacementPolicy {
  std::vector<MissView> misses;
  int64_t link_busy_ns = 0;
  bool wrong = false;
  PlacementDecision Place(const PlacementSnapshot& snapshot) override {
    misses.assign(snapshot.misses.begin(), snapshot.misses.end());
    link_busy_ns = snapshot.link_busy_ns;
    if (wrong) return {};
    std::vector<Placement> placements;
    for (const MissView& miss : misses) {
      const bool cpu = miss.cpu_ns >= 0 && miss.cpu_ns < miss.load_ns;
      placements.push_back(cpu ? Placement::kCpu : Placement::kLoad);
    }
    return {placements, Backfill::kFreeSlots};
  }
};

struct Fixture {
  Earliest policy;
  MoeModelSpec model;
  std::unique_ptr<Scheduler> scheduler;

  explicit Fixture(bool measured = true) {
    SchedulerOptions options;
    options.profile.link_bytes_per_s = 1e9;
    options.profile.link_latency_ns = 0;
    options.profile.cpu_weight_bytes_per_s = 2e9;  // twice as fast
    options.profile.cpu_expert_latency_ns = 0;
    options.measured = measured;
    scheduler = *Scheduler::Create(&policy, options);
  }
  PlacedMisses Place(const std::vector<Miss>& misses, const LinkLoad& link = {}) {
    PolicyContext context;
    context.model = &model;
    context.phase = Phase::kDecode;
    return scheduler->Place(context, misses, link);
  }
};

TEST_CASE("misses are priced by the profile, placed by the policy and counted") {
  Fixture f;
  const PlacedMisses placed =
      f.Place({{.expert = 3, .tokens = 1, .mass = 0.5f, .bytes = 1000, .cpu = true},
               {.expert = 4, .tokens = 4, .bytes = 1000, .cpu = true},
               {.expert = 5, .bytes = 1000}},
              {.transfers = 2, .bytes = 1000});
  CHECK(placed.placements ==
        std::vector<Placement>{Placement::kCpu, Placement::kLoad, Placement::kLoad});
  CHECK(placed.cpu_ns == 500);
  CHECK(placed.backfill == Backfill::kFreeSlots);
  CHECK(f.policy.misses[0].load_ns == 1000);
  CHECK(f.policy.misses[0].mass == 0.5f);
  CHECK(f.policy.misses[1].cpu_ns == 2000);
  CHECK(f.policy.misses[2].cpu_ns == -1);
  CHECK(f.policy.link_busy_ns == 1500);  // the one that moves is half way
  const SchedulerStats stats = f.scheduler->stats();
  CHECK(stats.cpu_computed == 1);
  CHECK(stats.balance_cpu_ns == 500);
  CHECK(stats.balance_load_ns == 2000);
  CHECK(stats.policy_fallbacks == 0);
}

TEST_CASE("measurements correct the profile, unless it is said to be exact") {
  const Miss miss{.expert = 0, .bytes = 1000, .cpu = true};
  for (const bool measured : {true, false}) {
    Fixture f(measured);
    f.scheduler->ObserveTransfer(1000, 0, 3000);
    const PlacedMisses placed = f.Place({miss});
    CHECK(f.policy.misses[0].load_ns == (measured ? 3000 : 1000));
    f.scheduler->ObserveCpuTime(placed.cpu_ns, 4 * placed.cpu_ns);
    f.Place({miss});
    CHECK(f.policy.misses[0].cpu_ns == (measured ? 2000 : 500));
  }
}

TEST_CASE("an expert that is on its way is half there; computed all the same, it is counted so") {
  Fixture f;
  f.Place({{.expert = 0, .bytes = 4000, .arriving = true, .cpu = true}});
  CHECK(f.policy.misses[0].load_ns == 2000);
  CHECK(f.scheduler->stats().cpu_computed_late == 0);
  f.scheduler->ObserveTransfer(1000, 0, 8000);
  f.Place({{.expert = 0, .bytes = 4000, .arriving = true, .cpu = true}});
  CHECK(f.scheduler->stats().cpu_computed_late == 1);
}

TEST_CASE("an invalid answer is replaced: everything is loaded") {
  Fixture f;
  f.policy.wrong = true;
  const PlacedMisses placed = f.Place({{.expert = 0, .bytes = 1000, .cpu = true}});
  CHECK(placed.placements == std::vector<Placement>{Placement::kLoad});
  CHECK(f.scheduler->stats().policy_fallbacks == 1);
}

TEST_CASE("without a policy everything is loaded; a profile without rates is refused") {
  const auto plain = *Scheduler::Create(nullptr, {});
  const std::vector<Miss> misses = {{.expert = 0, .bytes = 1000, .cpu = true}};
  CHECK(plain->Place({}, misses).placements == std::vector<Placement>{Placement::kLoad});
  SchedulerOptions options;
  options.profile.cpu_weight_bytes_per_s = 0;
  CHECK(Scheduler::Create(nullptr, options).status().message() ==
        "profile reference: cpu_weight_bytes_per_s is 0; must be positive");
}

}  // namespace
}  // namespace moert
