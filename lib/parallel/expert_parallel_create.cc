// Creates a group: ranks tell each other whether they succeeded.
#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "base/checked_math.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/status_macros.h"
#include "engine/shard.h"
#include "fmt/format.h"
#include "parallel/expert_parallel_impl.h"
#include "parallel/rank_threads.h"

namespace moert {
namespace {

/// Makes an engine over this rank's shard, and the other parts that the exchange needs.
absl::StatusOr<std::unique_ptr<ExpertParallelImpl>> MakeImpl(
    const std::shared_ptr<const ExpertSource>& source, const EngineOptions& options,
    const std::vector<ShardPlan>& plans, const std::shared_ptr<Collectives>& group) {
  MOERT_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Create(source, options));
  DeviceParts device;
  if (engine->backend() == BackendKind::kCuda) {
    MOERT_ASSIGN_OR_RETURN(device.kernels, MakeRowKernels(options.device));
    MOERT_ASSIGN_OR_RETURN(device.fence, MakeStepFence(options.device));
  }
  return std::make_unique<ExpertParallelImpl>(source->model(), std::move(engine), plans, group,
                                              std::move(device), options.max_tokens_per_forward);
}

absl::StatusOr<std::unique_ptr<ExpertParallelImpl>> MakeRank(
    const std::shared_ptr<const ExpertSource>& source, EngineOptions options,
    absl::Span<const Shard> shards, const std::shared_ptr<Collectives>& group) {
  if (static_cast<int>(shards.size()) != group->size()) {
    return InvalidArgument("{} shards for a group of {} ranks: each rank has one", shards.size(),
                           group->size());
  }
  MOERT_RETURN_IF_ERROR(CheckShards(source->model(), shards));
  std::vector<ShardPlan> plans;
  for (const Shard& shard : shards) {
    MOERT_ASSIGN_OR_RETURN(ShardPlan plan, ResolveShard(shard, source->model()));
    plans.push_back(std::move(plan));
  }
  options.shard = shards[group->rank()];
  return MakeImpl(source, options, plans, group);
}

/// Makes a rank of a group whose experts move: it may be given any expert, and has the shared ones.
absl::StatusOr<std::unique_ptr<ExpertParallelImpl>> MakePlacedRank(
    const std::shared_ptr<const ExpertSource>& source, EngineOptions options,
    const ExpertPlacement& placement, const std::shared_ptr<Collectives>& group) {
  const MoeModelSpec& model = source->model();
  MOERT_RETURN_IF_ERROR(CheckPlacement(model, placement));
  if (placement.ranks != group->size()) {
    return InvalidArgument("a placement of {} ranks; the group has {}", placement.ranks,
                           group->size());
  }
  const bool shared = std::any_of(model.layers.begin(), model.layers.end(),
                                  [](const MoeLayerSpec& l) { return l.shared_intermediate > 0; });
  std::vector<ShardPlan> plans;
  for (int r = 0; r < group->size(); ++r) {
    Shard shard;
    shard.shared_experts = r == 0 || !shared;  // rank 0 computes the shared experts
    MOERT_ASSIGN_OR_RETURN(ShardPlan plan, ResolveShard(shard, model));
    plans.push_back(std::move(plan));
  }
  options.shard = Shard{};
  MOERT_ASSIGN_OR_RETURN(std::unique_ptr<ExpertParallelImpl> rank,
                         MakeImpl(source, options, plans, group));
  std::unique_ptr<OwnedIds> device;
  if (rank->engine()->backend() == BackendKind::kCuda) {
    int top_k = 1;
    for (const MoeLayerSpec& layer : model.layers) top_k = std::max(top_k, layer.routing.top_k);
    const int64_t pairs = RoundUp(options.max_tokens_per_forward, group->size()) * top_k;
    MOERT_ASSIGN_OR_RETURN(device, MakeOwnedIds(options.device, model.total_experts(), pairs));
  }
  MOERT_RETURN_IF_ERROR(rank->StartPlaced(
      placement, std::make_unique<PlacedIds>(model, group->rank(), std::move(device))));
  return rank;
}

/// A rank's status, sent to the others.
struct Verdict {
  int32_t code = 0;
  char message[252] = {};
};

/// Exchanges the status of all ranks. Returns OK, this rank's own error, or else the first error of
/// another rank.
absl::Status AllReady(const absl::Status& mine, Collectives* group) {
  Verdict verdict;
  verdict.code = static_cast<int32_t>(mine.code());
  const absl::string_view message = mine.message();
  std::copy_n(message.begin(), std::min(message.size(), sizeof(verdict.message) - 1),
              verdict.message);
  std::vector<Verdict> all(group->size());
  const absl::Status gathered =
      group->AllGather(&verdict, sizeof(verdict), all.data(), /*stream=*/nullptr);
  MOERT_RETURN_IF_ERROR(mine);
  MOERT_RETURN_IF_ERROR(gathered);
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].code == 0) continue;
    all[r].message[sizeof(verdict.message) - 1] = 0;
    return absl::Status(static_cast<absl::StatusCode>(all[r].code),
                        fmt::format("rank {} gave up: {}", r, all[r].message));
  }
  return absl::OkStatus();
}

/// make() makes this rank; agree(rank) agrees with the others once all ranks are made.
template <typename Make, typename Agree>
absl::StatusOr<std::unique_ptr<ExpertParallel>> CreateWith(
    const std::shared_ptr<const ExpertSource>& source, const std::shared_ptr<Collectives>& group,
    EngineOptions* options, const Make& make, const Agree& agree) try {
  if (source == nullptr) return absl::InvalidArgumentError("source: must not be null");
  if (group == nullptr) return absl::InvalidArgumentError("group: must not be null");
  absl::StatusOr<std::unique_ptr<ExpertParallelImpl>> rank =
      [&]() -> absl::StatusOr<std::unique_ptr<ExpertParallelImpl>> {
    MOERT_ASSIGN_OR_RETURN(const std::vector<RankPlace> places,
                           GatherPlaces(group.get(), *options));
    const RankMeeting meeting(places, group->rank());
    const absl::Cleanup meet = [&] { meeting.Meet(std::chrono::minutes(1)); };
    MOERT_RETURN_IF_ERROR(ShareCpus(places, group->rank(), options));
    return make();
  }();
  absl::Status ready = AllReady(rank.status(), group.get());
  if (ready.ok()) ready = agree(rank->get());
  if (ready.ok()) return std::unique_ptr<ExpertParallel>(*std::move(rank));
  group->Abort(ready);
  return ready;
} catch (...) {
  const absl::Status status = ExceptionStatus("an expert-parallel group");
  if (group != nullptr) group->Abort(status);
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ExpertParallel>> ExpertParallel::Create(
    std::shared_ptr<const ExpertSource> source, EngineOptions options,
    absl::Span<const Shard> shards, std::shared_ptr<Collectives> group) {
  return CreateWith(
      source, group, &options, [&] { return MakeRank(source, options, shards, group); },
      [](ExpertParallelImpl*) { return absl::OkStatus(); });
}

absl::StatusOr<std::unique_ptr<ExpertParallel>> ExpertParallel::CreatePlaced(
    std::shared_ptr<const ExpertSource> source, EngineOptions options,
    const ExpertPlacement& placement, std::shared_ptr<Collectives> group) {
  return CreateWith(
      source, group, &options, [&] { return MakePlacedRank(source, options, placement, group); },
      [&](ExpertParallelImpl* rank) { return rank->AgreeOnSplit(*source, options); });
}

}  // namespace moert
