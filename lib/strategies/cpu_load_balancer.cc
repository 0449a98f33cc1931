// Placement by Algorithm 2 of the importance paper, where a CPU executor stands beside the fast
// tier. Where there is none (the CPU backend: its link is the disk and its CPU is the executor)
// there is nothing to balance, and every miss is loaded.
#include <algorithm>

#include "plan/balancer.h"
#include "strategies/builtin.h"

namespace moert {
namespace {

class CpuLoadBalancer final : public PlacementPolicy {
 public:
  absl::string_view name() const override { return "cpu-load-balancer"; }

  std::vector<Placement> Place(const PlacementSnapshot& snapshot) override {
    std::vector<Placement> placements(snapshot.misses.size(), Placement::kLoad);
    std::vector<BalanceItem> items;
    int64_t load_all_ns = 0;
    for (const MissView& miss : snapshot.misses) {
      if (miss.cpu_ns < 0) return placements;
      items.push_back({miss.tokens, miss.load_ns, miss.cpu_ns});
      load_all_ns += miss.load_ns;
    }
    // CPU time grows with the tokens, a load's does not: in prefill the CPU would become the
    // bottleneck. The paper keeps prefill off the CPU by a threshold on tokens; here the measured
    // costs decide, which also covers large decode batches and slow CPUs.
    const Balance balance = BalanceCpuLoad(items);
    if (std::max(balance.load_ns, balance.cpu_ns) >= load_all_ns) return placements;
    for (size_t i = 0; i < placements.size(); ++i) {
      if (balance.on_cpu[i]) placements[i] = Placement::kCpu;
    }
    return placements;
  }
};

}  // namespace

std::unique_ptr<PlacementPolicy> MakeCpuLoadBalancer() {
  return std::make_unique<CpuLoadBalancer>();
}

}  // namespace moert
