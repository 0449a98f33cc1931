// Misses that a device gives to the CPU (lib/rules/cpu_share.h): its splits are the balancer's,
// by the costs that the scheduler gives it.
#include "rules/cpu_share.h"

#include <algorithm>
#include <random>
#include <vector>

#include "plan/miss_placer.h"
#include "plan/placement_rule.h"
#include "tests/support/catch.h"

namespace moert {
namespace {

CpuCosts Draw(std::mt19937* rng) {
  CpuCosts costs;
  costs.load = 1 + static_cast<int64_t>((*rng)() % 100);
  const auto first = static_cast<int64_t>((*rng)() % 120),
             next = static_cast<int64_t>((*rng)() % 30);
  for (int t = 1; t <= kMostCpuTokens; ++t) costs.tokens[t] = first + t * next;
  return costs;
}

/// Tokens of some misses, most first.
std::vector<int32_t> DrawMisses(std::mt19937* rng) {
  std::vector<int32_t> tokens((*rng)() % 12);
  for (int32_t& t : tokens) t = 1 + static_cast<int32_t>((*rng)() % ((*rng)() % 2 == 0 ? 3 : 32));
  std::sort(tokens.begin(), tokens.end(), std::greater<>());
  return tokens;
}

std::vector<BalanceItem> Items(const CpuCosts& costs, const std::vector<int32_t>& tokens) {
  std::vector<BalanceItem> items;
  for (const int32_t t : tokens) items.push_back({t, costs.load, costs.tokens[t]});
  return items;
}

int OnCpu(const Balance& balance) {
  return static_cast<int>(std::count(balance.on_cpu.begin(), balance.on_cpu.end(), 1));
}

TEST_CASE("by completion the device splits misses as the host does") {
  std::mt19937 rng(1);
  int both = 0, none = 0, all = 0;
  for (int i = 0; i < 50000; ++i) {
    const CpuCosts costs = Draw(&rng);
    const std::vector<int32_t> tokens = DrawMisses(&rng);
    const auto misses = static_cast<int>(tokens.size());
    const int64_t busy = rng() % 2 == 0 ? 0 : static_cast<int64_t>(rng() % 200);
    const int loaded = LoadedByCompletion(costs, tokens.data(), misses, busy);
    const Balance host = BalanceByCompletion(Items(costs, tokens), busy);
    REQUIRE(misses - loaded == OnCpu(host));
    // Those of the most tokens are loaded.
    for (int m = 0; m < misses; ++m) REQUIRE((m >= loaded) == (host.on_cpu[m] != 0));
    both += loaded > 0 && loaded < misses;
    none += misses > 0 && loaded == misses;
    all += misses > 0 && loaded == 0;
  }
  CHECK(both > 5000);
  CHECK(none > 1000);
  CHECK(all > 1000);
}

TEST_CASE("in turns, as the policy answers for the host") {
  const auto policy = MakePlacementPolicy({.balance = CpuBalance::kInTurns});
  std::mt19937 rng(2);
  int both = 0, none = 0;
  for (int i = 0; i < 50000; ++i) {
    const CpuCosts costs = Draw(&rng);
    const std::vector<int32_t> tokens = DrawMisses(&rng);
    const auto misses = static_cast<int>(tokens.size());
    std::vector<MissView> views(tokens.size());
    for (size_t m = 0; m < tokens.size(); ++m) {
      views[m].expert = static_cast<int32_t>(m);
      views[m].tokens = tokens[m];
      views[m].load_ns = costs.load;
      views[m].cpu_ns = costs.tokens[tokens[m]];
    }
    const std::vector<Placement> host = policy->Place({PolicyContext{}, views, 0}).placements;
    const int loaded = LoadedInTurns(costs, tokens.data(), misses);
    for (int m = 0; m < misses; ++m) {
      REQUIRE((host[static_cast<size_t>(m)] == Placement::kCpu) == (m >= loaded));
    }
    both += loaded > 0 && loaded < misses;
    none += misses > 0 && loaded == misses;
  }
  CHECK(both > 5000);
  CHECK(none > 1000);
}

TEST_CASE("free slots are filled whatever it costs, and nobody without costs is given anything") {
  std::mt19937 rng(3);
  for (int i = 0; i < 20000; ++i) {
    const CpuCosts costs = Draw(&rng);
    const std::vector<int32_t> tokens = DrawMisses(&rng);
    const auto misses = static_cast<int>(tokens.size());
    const int free = static_cast<int>(rng() % 14);
    for (const bool by_completion : {false, true}) {
      const int loaded = MissesLoaded(costs, by_completion, tokens.data(), misses, free, 0);
      const int rule = MissesLoaded(costs, by_completion, tokens.data(), misses, 0, 0);
      CHECK(loaded == std::max(rule, std::min(free, misses)));
      CHECK(loaded <= misses);
      CHECK(MissesLoaded(CpuCosts{}, by_completion, tokens.data(), misses, 0, 0) == misses);
    }
  }
}

TEST_CASE("the device waits for longer than was planned") {
  for (const int64_t planned : {0, 1, 1000, 1'000'000, 1'000'000'000}) {
    CHECK(CpuPatience(planned) >= 4 * planned);
    CHECK(CpuPatience(planned) >= 1'000'000);
    CHECK(CpuPatience(planned) <= 4 * planned + 10'000'000);
  }
}

struct Placer {
  HardwareProfile profile;
  LinkEstimate link{&profile};
  std::unique_ptr<PlacementPolicy> policy =
      MakePlacementPolicy({.balance = CpuBalance::kByCompletion, .backfills = true});
  Placer() {
    profile.link_bytes_per_s = 1e9;
    profile.link_latency_ns = 0;
    profile.cpu_weight_bytes_per_s = 2e9;
    profile.cpu_expert_latency_ns = 100;
    profile.cpu_next_token_share = 0.5;
  }
};

TEST_CASE("costs are the profile's, corrected by what the device's jobs took") {
  Placer p;
  MissPlacer placer(p.policy.get(), &p.profile, &p.link, "w4");
  CpuCosts costs = placer.Costs(10000);
  CHECK(costs.load == 10000);
  CHECK(costs.tokens[0] == 0);
  CHECK(costs.tokens[1] == 5100);
  CHECK(costs.tokens[3] == 10100);

  ServedCount count;
  count.cpu_computed = 3;
  count.cpu_modelled_ns = 10000;
  count.cpu_took_ns = 20000;
  placer.CountServed(count);
  CHECK(placer.stats().cpu_computed == 3);
  CHECK(placer.stats().balance_cpu_ns == 10000);
  costs = placer.Costs(10000);
  CHECK(costs.tokens[1] == 10200);
  CHECK(costs.load == 10000);
  // The same again: what was measured is what is thought.
  for (int i = 0; i < 100; ++i) placer.CountServed(count);
  CHECK(placer.Costs(10000).tokens[1] == 10200);

  // A CPU that was given nothing is thought a little faster each time, until it is tried again.
  ServedCount loads;
  loads.loads = 4;
  placer.CountServed(loads);
  const int64_t once = placer.Costs(10000).tokens[1];
  CHECK(once < 10200);
  CHECK(once > 10000);
  for (int i = 0; i < 500; ++i) placer.CountServed(loads);
  const int64_t forgotten = placer.Costs(10000).tokens[1];
  CHECK(forgotten < 3000);
  placer.CountServed(count);
  CHECK(placer.Costs(10000).tokens[1] > forgotten * 14 / 10);  // a trial counts for much
  // One that computed, or whose job was taken back, was given something.
  const int64_t before = placer.Costs(10000).tokens[1];
  loads.cpu_taken_back = 1;
  placer.CountServed(loads);
  loads.cpu_taken_back = 0;
  loads.cpu_computed = 1;  // what it took was known before
  placer.CountServed(loads);
  CHECK(placer.Costs(10000).tokens[1] == before);
}

TEST_CASE("a job is given only what ends earlier with its start") {
  CpuCosts costs;
  costs.load = 50;
  costs.tokens[1] = 10;
  const int32_t tokens[] = {1, 1, 1};
  CHECK(LoadedByCompletion(costs, tokens, 1, 0) == 0);
  CHECK(LoadedByCompletion(costs, tokens, 3, 0) == 0);
  costs.start = 60;
  CHECK(LoadedByCompletion(costs, tokens, 1, 0) == 1);  // 50 by the link, 70 by the CPU
  CHECK(LoadedByCompletion(costs, tokens, 2, 0) == 1);  // 70 beside 50
  CHECK(LoadedByCompletion(costs, tokens, 3, 0) == 1);  // 80 beside 50
  costs.start = 150;
  CHECK(LoadedByCompletion(costs, tokens, 3, 0) == 3);
}

TEST_CASE("a CPU that owes what nobody else can compute is given less beside it") {
  CpuCosts costs;
  costs.load = 50;
  costs.tokens[1] = 10;
  const int32_t tokens[] = {1, 1, 1};
  CHECK(LoadedByCompletion(costs, tokens, 3, 0, 15) == 0);  // 45 by the CPU, 50 beside 35
  CHECK(LoadedByCompletion(costs, tokens, 3, 0, 45) == 1);
  CHECK(LoadedByCompletion(costs, tokens, 3, 0, 100) == 2);
  CHECK(LoadedByCompletion(costs, tokens, 3, 0, 1000) == 3);
  // A job is there anyway: its start is nobody's reason to load.
  costs.start = 150;
  CHECK(LoadedByCompletion(costs, tokens, 3, 0) == 3);
  CHECK(LoadedByCompletion(costs, tokens, 3, 0, 1) == 3);
  costs.load = 500;
  CHECK(LoadedByCompletion(costs, tokens, 3, 0, 1) == 0);
  CHECK(LoadedInTurns(costs, tokens, 3, 0) == 1);
  CHECK(LoadedInTurns(costs, tokens, 3, 2000) == 3);
  for (const bool by_completion : {false, true}) {
    CHECK(MissesLoaded(costs, by_completion, tokens, 3, 0, 0, 5000) == 3);
    CHECK(MissesLoaded(costs, by_completion, tokens, 0, 0, 0, 5000) == 0);
  }
}

TEST_CASE("the start of a job is found where jobs differ, and no scale has it twice") {
  Placer p;
  MissPlacer placer(p.policy.get(), &p.profile, &p.link, "w4");
  for (int i = 0; i < 400; ++i) {
    const int64_t experts = 1 + i % 4;
    ServedCount count;
    count.cpu_computed = experts;
    count.cpu_jobs = 1;
    count.cpu_modelled_ns = experts * 10'000;
    count.cpu_took_ns = 30'000 + experts * 20'000;
    placer.CountServed(count);
  }
  const CpuCosts costs = placer.Costs(10000);
  CHECK(costs.start > 10'000 + 28'000);
  CHECK(costs.start < 10'000 + 32'000);
  CHECK(costs.tokens[1] > 5100 * 18 / 10);
  CHECK(costs.tokens[1] < 5100 * 22 / 10);
}

TEST_CASE("where the profile is exact, nothing corrects it") {
  Placer p;
  MissPlacer placer(p.policy.get(), &p.profile, nullptr, "w4");
  ServedCount count;
  count.cpu_modelled_ns = 1000;
  count.cpu_took_ns = 9000;
  placer.CountServed(count);
  CHECK(placer.Costs(10000).tokens[1] == 5100);
}

}  // namespace
}  // namespace moert
