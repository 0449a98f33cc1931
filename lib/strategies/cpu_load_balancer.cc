// Placement by Algorithm 2 of the importance paper, where a CPU executor stands beside the fast
// tier. Where there is none (the CPU backend: its link is the disk and its CPU is the executor)
// there is nothing to balance, and every miss is loaded.
#include <algorithm>

#include "plan/balancer.h"
#include "strategies/builtin.h"
#include "strategies/state_bytes.h"

namespace moert {
namespace {

class CpuLoadBalancer final : public PlacementPolicy {
 public:
  explicit CpuLoadBalancer(const CpuBalanceOptions& options) : options_(options) {}

  PolicyTraits traits() const override {
    const auto balance = options_.by_completion ? CpuBalance::kByCompletion : CpuBalance::kInTurns;
    return {.lossy = true, .backfills = options_.fill, .balance = balance};
  }

  int64_t StateBytes(const PolicyScope& scope) const override {
    // A miss has its placement, its two costs, and its place in two orders.
    constexpr int64_t kMiss =
        kGrowth * (sizeof(BalanceItem) + sizeof(size_t)) + sizeof(Placement) + sizeof(size_t) + 1;
    return PerLayerExpert(scope, kMiss);
  }

  PlacementDecision Place(const PlacementSnapshot& snapshot) override {
    return {Balanced(snapshot), BackfillIn(snapshot.context.phase)};
  }

 private:
  std::vector<Placement> Balanced(const PlacementSnapshot& snapshot) const {
    std::vector<Placement> placements(snapshot.misses.size(), Placement::kLoad);
    std::vector<BalanceItem> items;
    std::vector<size_t> miss_of;
    int64_t load_all_ns = 0, load_only_ns = 0;
    for (size_t i = 0; i < snapshot.misses.size(); ++i) {
      const MissView& miss = snapshot.misses[i];
      if (miss.arriving) {
        const bool sooner = miss.cpu_ns >= 0 && miss.cpu_ns < miss.load_ns;
        if (options_.by_completion && sooner) placements[i] = Placement::kCpu;
        continue;
      }
      load_all_ns += miss.load_ns;
      if (miss.cpu_ns < 0) {  // not in the CPU's reach
        load_only_ns += miss.load_ns;
        continue;
      }
      items.push_back({miss.tokens, miss.load_ns, miss.cpu_ns});
      miss_of.push_back(i);
    }
    if (options_.by_completion) {
      const Balance balance = BalanceByCompletion(items, snapshot.link_busy_ns, load_only_ns);
      for (size_t i = 0; i < items.size(); ++i) {
        if (balance.on_cpu[i]) placements[miss_of[i]] = Placement::kCpu;
      }
      return placements;
    }
    // CPU time grows with the tokens, a load's does not: in prefill the CPU would become the
    // bottleneck. The paper keeps prefill off the CPU by a threshold on tokens; here the measured
    // costs decide, which also covers large decode batches and slow CPUs.
    const Balance balance = BalanceCpuLoad(items, load_only_ns);
    if (std::max(balance.load_ns, balance.cpu_ns) >= load_all_ns) return placements;
    for (size_t i = 0; i < items.size(); ++i) {
      if (balance.on_cpu[i]) placements[miss_of[i]] = Placement::kCpu;
    }
    return placements;
  }

  Backfill BackfillIn(Phase phase) const {
    // Not in prefill: the next layer has loads of its own for the link.
    if (phase != Phase::kDecode) return Backfill::kNever;
    if (options_.fill) return Backfill::kAlways;
    // A cold cache would stay empty where the CPU is always earlier. Algorithm 2 begins with a
    // load, which fills a cache by itself.
    return options_.by_completion ? Backfill::kFreeSlots : Backfill::kNever;
  }

  const CpuBalanceOptions options_;
};

}  // namespace

std::unique_ptr<PlacementPolicy> MakeCpuLoadBalancer(const CpuBalanceOptions& options) {
  return std::make_unique<CpuLoadBalancer>(options);
}

}  // namespace moert
