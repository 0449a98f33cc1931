// load-on-demand: no routed expert outlives its layer call. The papers' LoD baseline; its speed
// does not depend on the budget.
#include "research/strategies/research_strategies.h"

namespace moert {
namespace {

class KeepNothing final : public ResidencyPolicy {
 public:
  std::vector<int> Capacity(const CapacitySnapshot& snapshot) override {
    return std::vector<int>(snapshot.model->layers.size(), 0);
  }
  int Victim(const VictimSnapshot& snapshot) override {
    return LeastRecentlyUsed(snapshot.candidates);
  }
};

}  // namespace

absl::StatusOr<Strategy> BuildLoadOnDemand(const StrategyContext& context) {
  const StrategyParams& params = context.params;
  Strategy strategy;
  if (params.Has("scheme")) strategy.versions = {params.Text("scheme", "")};
  strategy.residency = std::make_unique<KeepNothing>();
  return strategy;
}

}  // namespace moert
