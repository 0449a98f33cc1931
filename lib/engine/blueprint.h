// The decisions of opening an engine, before it allocates: the strategy, the versions it serves,
// the backend, and every byte the budget has to hold.
#ifndef MOERT_LIB_ENGINE_BLUEPRINT_H_
#define MOERT_LIB_ENGINE_BLUEPRINT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "exec/backend.h"
#include "moert/engine.h"
#include "moert/mixed_group_gemm.h"
#include "moert/options.h"
#include "moert/source/expert_source.h"
#include "moert/strategy.h"
#include "moert/thread_pool.h"
#include "moert/tools/profile.h"
#include "store/cache_blocks.h"
#include "store/residency/cache_policy.h"

namespace moert {

/// An engine over a shard is told this of the model.
struct PartOfModel {
  int64_t gate_bytes = 0;  // of gates that the budget also holds
  ExpertNumbering numbering;
};

/// Objects whose sizes a plan needs, and what they are made of; a created engine goes on with them.
struct Blueprint {
  Strategy strategy;
  std::string why;                         // it was chosen, where the options left that open
  std::unique_ptr<CachePolicy> residency;  // carries out the strategy's
  std::vector<int> versions;               // of the source; the best first
  std::unique_ptr<Backend> backend;
  std::shared_ptr<ThreadPool> pool;
  std::unique_ptr<MixedGroupGemm> gemm;  // over `pool`
  std::unique_ptr<Clock> clock;
  HardwareProfile profile;  // of the options, with the link that they ask for
  ExpertNumbering numbering;
  MemoryPlan plan;

  /// Whether Executor::PartialOutput may be called.
  bool partial_output() const;
  /// Whether versions share a pool, in blocks of their sizes.
  bool shared_pool() const {
    return strategy.serving == Serving::kHotSet && strategy.versions.size() > 2;
  }
  /// The rules of a device that may serve misses; else none.
  ServedRules served() const;
  /// Whether misses may be given to a CPU beside the fast tier.
  bool cpu_offload() const;
};

/// Checks options, model and source against each other and makes the plan. InvalidArgument names
/// the field; a budget that is too small is refused with the arithmetic.
absl::StatusOr<Blueprint> MakeBlueprint(const ExpertSource& source, const EngineOptions& options,
                                        const PartOfModel& part = {});

/// The blocks of a cache, or of the high version. Behind the strategy, the versions and the backend
/// of a blueprint in the making.
CacheBlocks BlocksOf(const ExpertSource& source, const Blueprint& b);

}  // namespace moert

#endif  // MOERT_LIB_ENGINE_BLUEPRINT_H_
