// Algorithm 2 of the importance paper against its listing, over all small cases.

#include <algorithm>
#include <numeric>

#include "plan/placement_rule.h"
#include "tests/support/catch.h"

namespace moert {
namespace {

/// The listing, line by line: U_batch of (uid, B), one t_load, one t_cpu per token.
struct Listing {
  std::vector<int> load, cpu;
  int64_t c_load = 0, c_cpu = 0;
};
Listing Algorithm2(const std::vector<int64_t>& batch, int64_t t_load, int64_t t_cpu) {
  Listing out;
  std::vector<std::pair<int, int64_t>> u;
  for (size_t i = 0; i < batch.size(); ++i) u.push_back({static_cast<int>(i), batch[i]});
  std::stable_sort(u.begin(), u.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  int l = 0, r = static_cast<int>(u.size()) - 1;
  while (l <= r) {
    if (out.c_load <= out.c_cpu) {
      out.c_load += t_load;
      out.load.push_back(u[l].first);
      ++l;
    } else {
      out.c_cpu += u[r].second * t_cpu;
      out.cpu.push_back(u[r].first);
      --r;
    }
  }
  return out;
}

TEST_CASE("Algorithm 2: all batches of up to 6 experts against the listing") {
  int64_t cases = 0, both = 0;
  for (int n = 0; n <= 6; ++n) {
    int64_t codes = 1;
    for (int i = 0; i < n; ++i) codes *= 4;
    for (int64_t code = 0; code < codes; ++code) {
      std::vector<int64_t> batch;
      for (int64_t c = code, i = 0; i < n; ++i, c /= 4) batch.push_back(1 + c % 4);
      for (const int64_t t_load : {1, 2, 5, 9}) {
        for (const int64_t t_cpu : {1, 3, 7}) {
          std::vector<BalanceItem> items;
          for (const int64_t b : batch) items.push_back({b, t_load, b * t_cpu});
          const Balance got = BalanceCpuLoad(items);
          const Listing want = Algorithm2(batch, t_load, t_cpu);
          bool same = got.load_ns == want.c_load && got.cpu_ns == want.c_cpu &&
                      static_cast<int>(got.on_cpu.size()) == n;
          for (const int i : want.load) same = same && !got.on_cpu[i];
          for (const int i : want.cpu) same = same && got.on_cpu[i];
          if (!same) FAIL("batch " << n << " code " << code << " t " << t_load << " " << t_cpu);
          // The larger batches are loaded, the smaller computed.
          for (const int a : want.load) {
            for (const int b : want.cpu) {
              if (batch[a] < batch[b]) FAIL("a smaller batch was loaded");
            }
          }
          ++cases;
          both += !want.load.empty() && !want.cpu.empty();
        }
      }
    }
  }
  CHECK(cases == (1 + 4 + 16 + 64 + 256 + 1024 + 4096) * 12);
  CHECK(both > cases / 2);
}

TEST_CASE("a greedy balance is at most one item from even") {
  for (int64_t code = 0; code < 4096; ++code) {
    std::vector<BalanceItem> items;
    for (int64_t c = code, i = 0; i < 6; ++i, c /= 4) {
      const int64_t b = 1 + c % 4;
      items.push_back({b, 10, 4 * b});
    }
    const Balance got = BalanceCpuLoad(items);
    REQUIRE(std::abs(got.load_ns - got.cpu_ns) <= 16);
  }
}

TEST_CASE("the split by completion is the best of all splits where loads are equal") {
  int64_t cases = 0, all_on_cpu = 0, ahead = 0;
  for (int n = 1; n <= 6; ++n) {
    int64_t codes = 1;
    for (int i = 0; i < n; ++i) codes *= 3;
    for (int64_t code = 0; code < codes; ++code) {
      std::vector<int64_t> batch;
      for (int64_t c = code, i = 0; i < n; ++i, c /= 3) batch.push_back(1 + c % 3);
      for (const int64_t t_load : {1, 4, 9, 40}) {
        for (const int64_t t_cpu : {1, 3}) {
          for (const int64_t busy : {0, 5}) {
            std::vector<BalanceItem> items;
            for (const int64_t b : batch) items.push_back({b, t_load, b * t_cpu});
            const auto done = [&](const std::vector<uint8_t>& on_cpu) {
              int64_t load = 0, cpu = 0;
              for (int i = 0; i < n; ++i)
                (on_cpu[i] ? cpu : load) += on_cpu[i] ? items[i].cpu_ns : t_load;
              return std::max(load > 0 ? busy + load : 0, cpu);
            };
            int64_t best = INT64_MAX, loads_of_best = 0;
            for (int mask = 0; mask < 1 << n; ++mask) {
              std::vector<uint8_t> on_cpu(n);
              int64_t loads = 0;
              for (int i = 0; i < n; ++i) loads += !(on_cpu[i] = mask >> i & 1);
              const int64_t ns = done(on_cpu);
              if (ns < best || (ns == best && loads > loads_of_best)) {
                best = ns;
                loads_of_best = loads;
              }
            }
            const Balance got = BalanceByCompletion(items, busy);
            if (done(got.on_cpu) != best)
              FAIL("batch " << n << " code " << code << " not the best");
            if (std::count(got.on_cpu.begin(), got.on_cpu.end(), 0) != loads_of_best) {
              FAIL("batch " << n << " code " << code << ": of equals the one that loads more");
            }
            int64_t load = 0, cpu = 0;
            for (int i = 0; i < n; ++i)
              (got.on_cpu[i] ? cpu : load) += got.on_cpu[i] ? items[i].cpu_ns : t_load;
            if (load != got.load_ns || cpu != got.cpu_ns) FAIL("sums");
            const Balance paper = BalanceCpuLoad(items);
            if (done(paper.on_cpu) < best) FAIL("Algorithm 2 is better");
            ++cases;
            all_on_cpu += loads_of_best == 0;
            ahead += done(paper.on_cpu) > best;
          }
        }
      }
    }
  }
  CHECK(cases == (3 + 9 + 27 + 81 + 243 + 729) * 16);
  CHECK(all_on_cpu > 1000);
  CHECK(ahead > cases / 4);
}

std::vector<Placement> Place(PlacementPolicy* policy, const std::vector<MissView>& misses,
                             int64_t link_busy_ns = 0) {
  return policy->Place({{}, misses, link_busy_ns}).placements;
}

MissView Miss(int expert, int tokens, int64_t load_ns, int64_t cpu_ns) {
  MissView miss;
  miss.expert = expert;
  miss.tokens = tokens;
  miss.load_ns = load_ns;
  miss.cpu_ns = cpu_ns;
  return miss;
}

TEST_CASE("the balancer shares misses where that helps and loads them all where it does not") {
  const auto policy = MakePlacementPolicy({.balance = CpuBalance::kInTurns});
  const auto load = Placement::kLoad, cpu = Placement::kCpu;
  // Loads of 10, CPU 4 a token: {3} loads 10; CPU takes 1 (4), 1 (8), 1 (12); then even: load.
  CHECK(Place(policy.get(), {Miss(0, 1, 10, 4), Miss(1, 1, 10, 4), Miss(2, 3, 10, 12),
                             Miss(3, 1, 10, 4), Miss(4, 2, 10, 8)}) ==
        std::vector<Placement>{cpu, cpu, load, cpu, load});
  // No CPU beside the fast tier: nothing to balance.
  CHECK(Place(policy.get(), {Miss(0, 1, 10, -1), Miss(1, 1, 10, -1)}) ==
        std::vector<Placement>{load, load});
  // Prefill: an expert's tokens make the CPU slower than all the loads together.
  CHECK(Place(policy.get(), {Miss(0, 100, 10, 400), Miss(1, 90, 10, 360)}) ==
        std::vector<Placement>{load, load});
  CHECK(Place(policy.get(), {}).empty());
}

TEST_CASE("by completion: a slow link is left alone, and a CPU does not wait for a prefetch") {
  constexpr auto kByCompletion = CpuBalance::kByCompletion;
  const auto policy = MakePlacementPolicy({.balance = kByCompletion, .backfills = true});
  const auto backfill = [](const PlacementRule& rule, Phase phase) {
    PolicyContext context;
    context.phase = phase;
    return MakePlacementPolicy(rule)->Place({context, {}, 0}).backfill;
  };
  CHECK(Backfills(policy.get()));
  CHECK_FALSE(Backfills(MakePlacementPolicy({.balance = kByCompletion}).get()));
  CHECK(backfill({kByCompletion, true}, Phase::kDecode) == Backfill::kAlways);
  // A cold cache is filled in any case, by the loads of Algorithm 2 or behind the CPU.
  CHECK(backfill({kByCompletion, false}, Phase::kDecode) == Backfill::kFreeSlots);
  CHECK(backfill({CpuBalance::kInTurns, false}, Phase::kDecode) == Backfill::kNever);
  CHECK(backfill({kByCompletion, true}, Phase::kPrefill) == Backfill::kNever);
  const auto load = Placement::kLoad, cpu = Placement::kCpu;
  // One transfer takes longer than the CPU needs for everything. Algorithm 2 would begin with it.
  CHECK(Place(policy.get(), {Miss(0, 1, 50, 4), Miss(1, 2, 50, 8)}) ==
        std::vector<Placement>{cpu, cpu});
  CHECK(Place(policy.get(), {Miss(0, 1, 10, 4), Miss(1, 3, 10, 12), Miss(2, 1, 10, 4)}) ==
        std::vector<Placement>{cpu, load, cpu});
  // The same with a link that has something to do.
  CHECK(Place(policy.get(), {Miss(0, 1, 10, 4), Miss(1, 3, 10, 12), Miss(2, 1, 10, 4)}, 20) ==
        std::vector<Placement>{cpu, cpu, cpu});
  MissView arriving = Miss(0, 1, 5, 4);
  arriving.arriving = true;
  CHECK(Place(policy.get(), {arriving, Miss(1, 9, 5, 36)}) == std::vector<Placement>{cpu, load});
  arriving.load_ns = 3;
  CHECK(Place(policy.get(), {arriving}) == std::vector<Placement>{load});
  CHECK(Place(policy.get(), {Miss(0, 1, 10, -1), Miss(1, 1, 10, -1)}) ==
        std::vector<Placement>{load, load});
}

}  // namespace
}  // namespace moert
