// The part of the model that a shard owns, from the options.
#ifndef MOERT_LIB_ENGINE_SHARD_H_
#define MOERT_LIB_ENGINE_SHARD_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/blueprint.h"
#include "moert/engine.h"
#include "moert/options.h"
#include "moert/source/expert_source.h"
#include "source/shard_source.h"

namespace moert {

/// The layers, experts and channels of a shard. InvalidArgument names those that the model does not
/// have.
absl::StatusOr<ShardPlan> ResolveShard(const Shard& shard, const MoeModelSpec& model);

/// The source that an engine over the options' shard reads; `source` itself if the shard is the
/// whole model.
absl::StatusOr<std::shared_ptr<const ExpertSource>> SourceOfShard(
    std::shared_ptr<const ExpertSource> source, const EngineOptions& options);

/// How `part`, the model of the shard's source, lies in the whole model. ResolveShard must accept
/// the shard.
PartOfModel PartOf(const MoeModelSpec& whole, const MoeModelSpec& part, const Shard& shard);

/// `whole`: the model's source; `part`: the shard's source; `plan`: what the shard owns, which is
/// not the whole model.
absl::StatusOr<std::unique_ptr<Engine>> MakeShardEngine(std::shared_ptr<const ExpertSource> whole,
                                                        std::shared_ptr<const ExpertSource> part,
                                                        const ShardPlan& plan,
                                                        const EngineOptions& options);

}  // namespace moert

#endif  // MOERT_LIB_ENGINE_SHARD_H_
