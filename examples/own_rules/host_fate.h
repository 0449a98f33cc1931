// The strategy `fate` as a host would write it: two policies that are rules, with installed headers
// only. The engine carries the rules out, on a device too, so that its steps can be captured in a
// CUDA graph while experts are missing. docs/guide/custom-policy.md explains it.
#ifndef EXAMPLES_OWN_RULES_HOST_FATE_H_
#define EXAMPLES_OWN_RULES_HOST_FATE_H_

#include <memory>
#include <optional>

#include "moert/strategy.h"

namespace own_rules {

/// Prefetches by the next layer's gate.
class NextGate : public moert::PrefetchPolicy {
 public:
  std::optional<moert::PrefetchRule> rule() const override {
    return moert::PrefetchRule{.kind = moert::PrefetchRuleKind::kNextGate};
  }
};

/// Evicts the expert that the next calls will want least, whatever its layer.
class LeastWorth : public moert::ResidencyPolicy {
 public:
  std::optional<moert::ResidencyRule> rule() const override {
    return moert::ResidencyRule{.kind = moert::ResidencyRuleKind::kWorth,
                                .shared_slots = true,
                                .capacity = {moert::CapacityRuleKind::kMeasured}};
  }
};

/// Adds the strategy `host-fate`.
inline absl::Status Register() {
  return moert::RegisterStrategy(
      {"host-fate", "fate, written by a host", {}},
      [](const moert::StrategyContext& /*context*/) -> absl::StatusOr<moert::Strategy> {
        moert::Strategy strategy;
        strategy.prefetch = std::make_unique<NextGate>();
        strategy.residency = std::make_unique<LeastWorth>();
        return strategy;
      });
}

}  // namespace own_rules

#endif  // EXAMPLES_OWN_RULES_HOST_FATE_H_
