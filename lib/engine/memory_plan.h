// Divides a byte budget: fixed parts first, experts from the rest (design rule 1).
#ifndef MOERT_LIB_ENGINE_MEMORY_PLAN_H_
#define MOERT_LIB_ENGINE_MEMORY_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "moert/engine.h"
#include "moert/source/expert_source.h"
#include "moert/strategy.h"

namespace moert {

/// Given the sizes in `plan` (constants, tables, workspace, blocks, experts), fills budget_bytes,
/// minimum_bytes and the slots. Refuses a budget below the minimum with the arithmetic.
absl::Status ApplyBudget(const Budget& budget, const Strategy& strategy, const MoeModelSpec& model,
                         MemoryPlan* plan);

/// Bytes of the blocks of MemoryPlan::own_bytes, in the order of layers and experts; empty if there
/// is no such pool. `versions`: the served versions.
std::vector<int64_t> OwnBlocks(const ExpertSource& source, const Strategy& strategy,
                               const std::vector<int>& versions);

/// For kHotSet: the number of high experts in all layers. The spare blocks are not counted (DynaExq
/// Sec. 4.3).
int64_t HighExperts(const MemoryPlan& plan);

}  // namespace moert

#endif  // MOERT_LIB_ENGINE_MEMORY_PLAN_H_
