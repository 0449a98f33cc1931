#include "engine/shard.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/exception_status.h"
#include "base/status_macros.h"
#include "fmt/format.h"
#include "moert/parallel/shard.h"

namespace moert {
namespace {

absl::StatusOr<std::vector<int32_t>> ExpertsOf(const Shard& shard, const MoeModelSpec& model,
                                               int l) {
  const int experts = model.layers[l].num_experts;
  std::vector<int32_t> own;
  if (shard.experts.empty()) {
    const int count = shard.num_experts == 0 ? experts : shard.num_experts;
    if (shard.first_expert < 0 || count < 1 || count > experts - shard.first_expert) {
      return InvalidArgument("shard: experts [{}, {}) of layer {}, which has [0, {})",
                             shard.first_expert, int64_t{shard.first_expert} + count, l, experts);
    }
    own.resize(count);
    std::iota(own.begin(), own.end(), shard.first_expert);
    return own;
  }
  own = shard.experts[l];
  if (own.empty()) {
    return InvalidArgument("shard: no expert of layer {}; at least one of each layer is needed", l);
  }
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i] < 0 || own[i] >= experts || (i > 0 && own[i] <= own[i - 1])) {
      return InvalidArgument("shard: expert {} of layer {}: legal are ascending ones in [0, {})",
                             own[i], l, experts);
    }
  }
  return own;
}

/// Units of a layer that each shard owns: every (expert, channel) and the shared experts.
struct Owner {
  int64_t begin = 0, end = 0;  // channels
  size_t shard = 0;
};

absl::Status CheckCover(std::vector<Owner> owners, int64_t channels, const std::string& what) {
  std::sort(owners.begin(), owners.end(),
            [](const Owner& a, const Owner& b) { return a.begin < b.begin; });
  int64_t covered = 0;
  for (size_t i = 0; i < owners.size(); ++i) {
    if (owners[i].begin < covered) {
      return InvalidArgument("shards {} and {} overlap: both own {}", owners[i - 1].shard,
                             owners[i].shard, what);
    }
    if (owners[i].begin > covered) break;
    covered = owners[i].end;
  }
  if (covered == channels) return absl::OkStatus();
  return InvalidArgument("no shard owns {} (channels from {} on, of {})", what, covered, channels);
}

}  // namespace

absl::StatusOr<ShardPlan> ResolveShard(const Shard& shard, const MoeModelSpec& model) {
  if (!shard.experts.empty() && (shard.num_experts != 0 || shard.first_expert != 0)) {
    return absl::InvalidArgumentError("shard: experts by range and by list; one of them");
  }
  if (!shard.experts.empty() && shard.experts.size() != model.layers.size()) {
    return InvalidArgument("shard: experts of {} layers, the model has {}", shard.experts.size(),
                           model.layers.size());
  }
  if (shard.first_channel < 0 || shard.num_channels < 0 ||
      (shard.num_channels == 0 && shard.first_channel != 0)) {
    return InvalidArgument(
        "shard: first_channel {}, num_channels {}: must be 0 or more, and both 0 for all",
        shard.first_channel, shard.num_channels);
  }
  ShardPlan plan;
  plan.all_experts = true;
  for (int l = 0; l < model.num_layers(); ++l) {
    const int64_t channels = model.layers[l].intermediate;
    if (shard.num_channels > channels - shard.first_channel) {
      return InvalidArgument("shard: {} channels from {} on: layer {} has {}", shard.num_channels,
                             shard.first_channel, l, channels);
    }
    MOERT_ASSIGN_OR_RETURN(std::vector<int32_t> own, ExpertsOf(shard, model, l));
    plan.all_experts =
        plan.all_experts && static_cast<int>(own.size()) == model.layers[l].num_experts;
    plan.experts.push_back(std::move(own));
  }
  plan.first_channel = shard.first_channel;
  plan.num_channels = shard.num_channels;
  plan.shared_experts = shard.shared_experts;
  return plan;
}

absl::StatusOr<std::shared_ptr<const ExpertSource>> SourceOfShard(
    std::shared_ptr<const ExpertSource> source, const EngineOptions& options) {
  if (options.shard.whole()) return source;
  MOERT_ASSIGN_OR_RETURN(const ShardPlan plan, ResolveShard(options.shard, source->model()));
  return MakeShardSource(std::move(source), plan);
}

PartOfModel PartOf(const MoeModelSpec& whole, const MoeModelSpec& part, const Shard& shard) {
  PartOfModel of;
  const absl::StatusOr<ShardPlan> plan = ResolveShard(shard, whole);
  if (!plan.ok() || plan->all_experts) return of;
  for (size_t l = 0; l < whole.layers.size(); ++l) {
    const MoeLayerSpec& layer = whole.layers[l];
    of.numbering.emplace_back(static_cast<size_t>(layer.num_experts), -1);
    for (size_t i = 0; i < plan->experts[l].size(); ++i) {
      of.numbering[l][plan->experts[l][i]] = static_cast<int32_t>(i);
    }
    if (layer.routing.kind == part.layers[l].routing.kind) continue;
    of.gate_bytes +=
        int64_t{4} * layer.num_experts * (layer.hidden + (layer.routing.selection_bias ? 1 : 0));
  }
  return of;
}

absl::Status CheckShards(const MoeModelSpec& model, absl::Span<const Shard> shards) try {
  std::vector<ShardPlan> plans;
  for (size_t s = 0; s < shards.size(); ++s) {
    absl::StatusOr<ShardPlan> plan = ResolveShard(shards[s], model);
    if (!plan.ok()) {
      return absl::Status(plan.status().code(),
                          fmt::format("shard {}: {}", s, std::string(plan.status().message())));
    }
    plans.push_back(*std::move(plan));
  }
  for (int l = 0; l < model.num_layers(); ++l) {
    const MoeLayerSpec& layer = model.layers[l];
    std::vector<std::vector<Owner>> owners(layer.num_experts);
    std::vector<Owner> shared;
    for (size_t s = 0; s < plans.size(); ++s) {
      const int64_t begin = plans[s].first_channel;
      const int64_t end =
          plans[s].num_channels == 0 ? layer.intermediate : begin + plans[s].num_channels;
      for (const int32_t e : plans[s].experts[l]) {
        owners[e].push_back({begin, end, s});
      }
      if (plans[s].shared_experts) shared.push_back({begin, end, s});
    }
    for (int e = 0; e < layer.num_experts; ++e) {
      MOERT_RETURN_IF_ERROR(CheckCover(std::move(owners[e]), layer.intermediate,
                                       fmt::format("expert {} of layer {}", e, l)));
    }
    if (layer.shared_intermediate == 0) continue;
    MOERT_RETURN_IF_ERROR(CheckCover(std::move(shared), layer.intermediate,
                                     fmt::format("the shared experts of layer {}", l)));
  }
  return absl::OkStatus();
} catch (...) {
  return ExceptionStatus("checking shards");
}

}  // namespace moert
