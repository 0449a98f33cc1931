// Carries out a PlacementRule.
#ifndef MOERT_LIB_PLAN_PLACEMENT_RULE_H_
#define MOERT_LIB_PLAN_PLACEMENT_RULE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "moert/policy.h"

namespace moert {

/// One expert that is missing from the fast tier.
struct BalanceItem {
  int64_t tokens = 0;   // B in the paper
  int64_t load_ns = 0;  // t_load: its transfer
  int64_t cpu_ns = 0;   // B t_cpu: its multiplication by the CPU
};

struct Balance {
  std::vector<uint8_t> on_cpu;  // by item
  int64_t load_ns = 0;          // T_load: sum over the loaded, and what is loaded in any case
  int64_t cpu_ns = 0;           // T_cpu: sum over the others
};

/// Algorithm 2. Items in descending order of tokens (of equals the first), two pointers: while the
/// link is behind the CPU or even, the item with most tokens is loaded; else the one with fewest
/// goes to the CPU. The paper's t_load and t_cpu are those of the item, so that experts of
/// different sizes are balanced too. `loading_ns`: what the link has to carry in any case.
Balance BalanceCpuLoad(absl::Span<const BalanceItem> items, int64_t loading_ns = 0);

/// The split with the earliest completion, max(T_load, T_cpu), among those that load the items with
/// most tokens and leave the rest to the CPU; of equals the one that loads more, which fills the
/// cache. Algorithm 2 begins with a load however slow the link is beside the CPU: where one
/// transfer takes longer than the CPU needs for all misses, that load alone is later than this
/// split. `link_busy_ns`: until the link is free; added to T_load where anything is loaded.
/// `loading_ns`: as above.
Balance BalanceByCompletion(absl::Span<const BalanceItem> items, int64_t link_busy_ns,
                            int64_t loading_ns = 0);

/// Carries a rule out, which is valid. In decode, misses whose routing weight is low are answered
/// low (rules/low_answers.h); the others are shared between the link and a CPU (importance paper
/// Sec. 5.4, Algorithm 2). Where no CPU stands beside the fast tier they are loaded.
std::unique_ptr<PlacementPolicy> MakePlacementPolicy(const PlacementRule& rule);

/// By its rule or its traits. Null: every miss is loaded.
Promise PromiseOf(const PlacementPolicy* policy);
double MaxLowShare(const PlacementPolicy* policy);
bool Backfills(const PlacementPolicy* policy);

}  // namespace moert

#endif  // MOERT_LIB_PLAN_PLACEMENT_RULE_H_
