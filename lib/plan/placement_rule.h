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
  int64_t load_ns = 0;          // T_load: sum over loaded items, plus loads that have no choice
  int64_t cpu_ns = 0;           // T_cpu: sum over the other items
};

/// Algorithm 2: items in descending order of tokens (stable), with two pointers. While T_load <=
/// T_cpu, the item with most tokens is loaded; else the one with fewest goes to the CPU. The
/// paper's t_load and t_cpu are those of the item, so experts of different sizes are balanced too.
/// `loading_ns`: loads that the link has to carry in any case.
Balance BalanceCpuLoad(absl::Span<const BalanceItem> items, int64_t loading_ns = 0);

/// The split with the earliest completion, max(T_load, T_cpu), among those that load the items with
/// most tokens and leave the rest to the CPU. Among equal splits the one that loads more, as it
/// fills the cache. Algorithm 2 always begins with a load: if one transfer takes longer than the
/// CPU needs for all misses, that load alone ends later than this split. `link_busy_ns`: time until
/// the link is free, added to T_load if anything is loaded. `loading_ns`: as above.
Balance BalanceByCompletion(absl::Span<const BalanceItem> items, int64_t link_busy_ns,
                            int64_t loading_ns = 0);

/// A policy that carries out `rule`, which must be valid. In decode, misses of low routing weight
/// are answered low (rules/low_answers.h); the others are shared between the link and a CPU
/// (importance paper Sec. 5.4, Algorithm 2). Without a CPU beside the fast tier they are loaded.
std::unique_ptr<PlacementPolicy> MakePlacementPolicy(const PlacementRule& rule);

/// Properties of a policy, from its rule or its traits. Null: every miss is loaded.
Promise PromiseOf(const PlacementPolicy* policy);
double MaxLowShare(const PlacementPolicy* policy);
bool Backfills(const PlacementPolicy* policy);

}  // namespace moert

#endif  // MOERT_LIB_PLAN_PLACEMENT_RULE_H_
