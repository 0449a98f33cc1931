// The decisions made when an engine is opened, before it allocates: the strategy, the versions that
// it serves, the backend, and every byte that the budget has to hold.
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

/// How a shard lies in the whole model, for the engine over the shard.
struct PartOfModel {
  int64_t gate_bytes = 0;  // bytes of gates that the budget also has to hold
  ExpertNumbering numbering;
};

/// The objects whose sizes a memory plan needs, with their inputs. The created engine uses them.
struct Blueprint {
  Strategy strategy;
  std::string why;                         // the reason, if the strategy was chosen automatically
  std::unique_ptr<CachePolicy> residency;  // carries out the strategy's policy
  std::vector<int> versions;               // served versions of the source, the best first
  std::unique_ptr<Backend> backend;
  std::shared_ptr<ThreadPool> pool;
  std::unique_ptr<MixedGroupGemm> gemm;  // over `pool`
  std::unique_ptr<Clock> clock;
  HardwareProfile profile;  // the options' profile, with the link that they ask for
  ExpertNumbering numbering;
  MemoryPlan plan;

  /// Whether Executor::PartialOutput may be called.
  bool partial_output() const;
  /// Whether the versions share a pool with blocks of several sizes.
  bool shared_pool() const {
    return strategy.serving == Serving::kHotSet && strategy.versions.size() > 2;
  }
  /// The rules for a device that may serve misses; default values if it may not.
  ServedRules served() const;
  /// Whether misses may be given to a CPU beside the fast tier.
  bool cpu_offload() const;
};

/// Checks options, model and source against each other and makes the plan. InvalidArgument names
/// the field; a budget that is too small is refused with the arithmetic.
absl::StatusOr<Blueprint> MakeBlueprint(const ExpertSource& source, const EngineOptions& options,
                                        const PartOfModel& part = {});

/// The blocks of a cache, or of the high version. Needs the strategy, the versions and the backend
/// of `b`, which may be incomplete otherwise.
CacheBlocks BlocksOf(const ExpertSource& source, const Blueprint& b);

}  // namespace moert

#endif  // MOERT_LIB_ENGINE_BLUEPRINT_H_
