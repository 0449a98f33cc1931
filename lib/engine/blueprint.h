// What opening an engine decides before it allocates: the strategy, the versions it serves, and
// every byte the budget has to hold.
#ifndef MOERT_LIB_ENGINE_BLUEPRINT_H_
#define MOERT_LIB_ENGINE_BLUEPRINT_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "exec/backend.h"
#include "moert/engine.h"
#include "moert/expert_source.h"
#include "moert/mixed_group_gemm.h"
#include "moert/options.h"
#include "moert/strategy.h"
#include "moert/thread_pool.h"

namespace moert {

/// Objects whose sizes a plan needs; a created engine goes on with them.
struct Blueprint {
  Strategy strategy;
  std::vector<int> versions;  // of the source
  std::shared_ptr<ThreadPool> pool;
  std::unique_ptr<MixedGroupGemm> gemm;
  std::unique_ptr<Backend> backend;  // null: the CPU
  MemoryPlan plan;
};

/// Checks options, model and source against each other and makes the plan. InvalidArgument names
/// the field; a budget that is too small is refused with the arithmetic.
absl::StatusOr<Blueprint> MakeBlueprint(const ExpertSource& source, const EngineOptions& options);

}  // namespace moert

#endif  // MOERT_LIB_ENGINE_BLUEPRINT_H_
