#include "engine/memory_plan.h"

#include <algorithm>
#include <cmath>

#include "base/bytes_text.h"
#include "base/errors.h"
#include "fmt/format.h"
#include "store/cache_blocks.h"

namespace moert {
namespace {

int64_t ExpertsAtFraction(const MoeModelSpec& model, double fraction) {
  int64_t high = 0;
  for (const MoeLayerSpec& layer : model.layers) {
    high += static_cast<int64_t>(std::floor(fraction * layer.num_experts + 1e-9));
  }
  return high;
}

/// Bytes of the smallest pools that keep the strategy's promise.
int64_t MinimumPoolBytes(const Strategy& strategy, const MoeModelSpec& model,
                         const MemoryPlan& plan) {
  const int64_t total = plan.total_experts;
  switch (strategy.serving) {
    case Serving::kCache:
      return strategy.preload ? plan.own_bytes : plan.block_bytes;
    case Serving::kHotSet: {
      const int64_t high = strategy.transitions.hi_fraction < 0
                               ? 0
                               : ExpertsAtFraction(model, strategy.transitions.hi_fraction);
      return (high + plan.spare) * plan.block_bytes +
             (total - high + plan.spare) * plan.low_block_bytes;
    }
    case Serving::kLowPlusCache:
    case Serving::kCacheOverLow:
      return plan.own_bytes + plan.block_bytes;
  }
  return 0;
}

void DealSlots(const Strategy& strategy, const MoeModelSpec& model, MemoryPlan* plan) {
  const int64_t pool = plan->budget_bytes - plan->fixed_bytes();
  const int64_t total = plan->total_experts;
  switch (strategy.serving) {
    case Serving::kCache:
      plan->slots = strategy.preload ? total : SlotsOf(pool, plan->all_bytes, total);
      break;
    case Serving::kHotSet: {
      // n S_hi + (total - n) S_lo + h (S_hi + S_lo) <= pool, solved for n.
      const int64_t base =
          total * plan->low_block_bytes + plan->spare * (plan->block_bytes + plan->low_block_bytes);
      int64_t high = std::min(
          total, (pool - base) / std::max<int64_t>(1, plan->block_bytes - plan->low_block_bytes));
      if (strategy.transitions.hi_fraction >= 0) {
        high = ExpertsAtFraction(model, strategy.transitions.hi_fraction);
      }
      plan->slots = high + plan->spare;
      plan->low_slots = total - high + plan->spare;
      break;
    }
    case Serving::kLowPlusCache:
    case Serving::kCacheOverLow:
      plan->low_slots = total;
      plan->slots = std::min(total, (pool - plan->own_bytes) / plan->block_bytes);
      break;
  }
}

}  // namespace

absl::Status ApplyBudget(const Budget& budget, const Strategy& strategy, const MoeModelSpec& model,
                         MemoryPlan* plan) {
  plan->minimum_bytes = plan->fixed_bytes() + MinimumPoolBytes(strategy, model, *plan);
  if (budget.bytes.has_value()) {
    plan->budget_bytes = *budget.bytes;
  } else if (budget.fraction > 0 && budget.fraction <= 1) {
    const bool own = strategy.serving == Serving::kCache && strategy.preload;
    const double all = static_cast<double>(own ? plan->own_bytes : plan->all_bytes);
    plan->budget_bytes = plan->fixed_bytes() + static_cast<int64_t>(budget.fraction * all);
  } else {
    return InvalidArgument("budget fraction {}: must be in (0, 1]", budget.fraction);
  }
  if (plan->budget_bytes < plan->minimum_bytes) {
    const std::string budget_text = BytesText(plan->budget_bytes);
    std::string minimum = BytesText(plan->minimum_bytes);
    if (minimum == budget_text) minimum = fmt::format("{} bytes", plan->minimum_bytes);
    return InvalidArgument("strategy {}: budget of {} is below the minimum of {}: {}",
                           strategy.spec, budget_text, minimum, plan->ToString());
  }
  DealSlots(strategy, model, plan);
  return absl::OkStatus();
}

std::vector<int64_t> OwnBlocks(const ExpertSource& source, const Strategy& strategy,
                               const std::vector<int>& versions) {
  const bool cache = strategy.serving == Serving::kCache;
  if (strategy.serving == Serving::kHotSet || (cache && !strategy.preload)) return {};
  std::vector<int64_t> bytes;
  const MoeModelSpec& model = source.model();
  for (int l = 0; l < model.num_layers(); ++l) {
    for (int e = 0; e < model.layers[l].num_experts; ++e) {
      int64_t most = 0;
      for (size_t v = cache ? 0 : 1; v < (cache ? versions.size() : 2); ++v) {
        most = std::max(most, BlockBytes(source.layout(l, e, versions[v])));
      }
      bytes.push_back(most);
    }
  }
  return bytes;
}

int64_t HighExperts(const MemoryPlan& plan) { return plan.slots - plan.spare; }

std::string MemoryPlan::ToString() const {
  std::string text = fmt::format(
      "{} gates and shared experts + {} tables + {} workspace + {}{} smallest pools = {}; {} "
      "experts of {} take {}",
      BytesText(constant_bytes), BytesText(table_bytes), BytesText(workspace_bytes),
      device ? "" : BytesText(policy_bytes) + " policies + ",
      BytesText(minimum_bytes - fixed_bytes()), BytesText(minimum_bytes), total_experts,
      BytesText(block_bytes), BytesText(all_bytes));
  if (low_block_bytes > 0) {
    text += fmt::format(", of {} (low version) {}", BytesText(low_block_bytes),
                        BytesText(total_experts * low_block_bytes));
  }
  const std::string in_ram = fmt::format("; beside it, in RAM: {} policies, up to {} pinned",
                                         BytesText(policy_bytes), BytesText(pinned_bytes));
  return device ? text + in_ram : text;
}

}  // namespace moert
