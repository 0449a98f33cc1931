// An engine over some of the experts: the host speaks of those of the whole model.
#ifndef MOERT_LIB_ENGINE_SHARD_ENGINE_H_
#define MOERT_LIB_ENGINE_SHARD_ENGINE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "moert/engine.h"
#include "source/shard_source.h"

namespace moert {

/// `part` is the source of the shard, `whole` the model's, `plan` says what it owns: not all.
absl::StatusOr<std::unique_ptr<Engine>> MakeShardEngine(std::shared_ptr<const ExpertSource> whole,
                                                        std::shared_ptr<const ExpertSource> part,
                                                        const ShardPlan& plan,
                                                        const EngineOptions& options);

}  // namespace moert

#endif  // MOERT_LIB_ENGINE_SHARD_ENGINE_H_
