#include "cli/bench/rank_load.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "cli/bench/step_source.h"
#include "cli/workload/workload.h"
#include "moert/parallel/shard.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

/// A step's rows [first, first + count).
RoutedStep RowsOf(const RoutedStep& all, int64_t first, int64_t count) {
  RoutedStep part;
  part.rows = count;
  const auto cut = [&](const auto& values) {
    const auto each = static_cast<int64_t>(values.size()) / all.rows;
    return std::decay_t<decltype(values)>(values.begin() + first * each,
                                          values.begin() + (first + count) * each);
  };
  part.hidden = cut(all.hidden);
  for (const auto& ids : all.ids) part.ids.push_back(cut(ids));
  for (const auto& weights : all.weights) part.weights.push_back(cut(weights));
  return part;
}

}  // namespace

absl::StatusOr<RankLoad> MakeRankLoad(const Shape& shape, const RankLoadOptions& o) {
  RankLoad load;
  load.phase = o.phase;
  load.rows = o.rows;
  load.warm = static_cast<size_t>(o.warm);
  const bool decode = o.phase == Phase::kDecode;

  StepPlan plan;
  plan.phase = o.phase;
  plan.batch = decode ? o.rows : 1;
  plan.prompt_tokens = decode ? 1 : o.rows;
  plan.steps = o.warm + o.steps;
  MOERT_ASSIGN_OR_RETURN(auto trace, MakeWorkloadTrace(shape, o.workload, o.seed, plan));
  const std::unique_ptr<StepSource> source = MakeTraceSteps(trace.get());
  // Products take as long whatever the rows hold.
  std::mt19937 random(static_cast<uint32_t>(o.seed));
  std::normal_distribution<float> normal;
  std::vector<float> hidden(static_cast<size_t>(o.rows * shape.spec.layers[0].hidden));
  for (float& v : hidden) v = normal(random);
  StepInputs inputs;
  for (int64_t s = 0; s < plan.steps; ++s) {
    MOERT_RETURN_IF_ERROR(source->Next(&inputs).status());
    RoutedStep& step = load.steps.emplace_back();
    step.rows = o.rows;
    step.hidden = hidden;
    for (LayerInputs& layer : inputs.layers) {
      step.ids.push_back(std::move(layer.ids));
      step.weights.push_back(std::move(layer.weights));
    }
  }
  return load;
}

std::vector<std::vector<RoutedStep>> RowsOfRanks(const RankLoad& load, int ranks) {
  std::vector<std::vector<RoutedStep>> steps(static_cast<size_t>(ranks));
  const int64_t each = load.rows / ranks;
  for (int r = 0; r < ranks; ++r) {
    for (const RoutedStep& step : load.steps) {
      steps[static_cast<size_t>(r)].push_back(RowsOf(step, each * r, each));
    }
  }
  return steps;
}

std::vector<Shard> ExpertRanges(const MoeModelSpec& model, int ranks) {
  std::vector<Shard> shards(static_cast<size_t>(ranks));
  const int experts = model.layers[0].num_experts;
  for (int r = 0; r < ranks; ++r) {
    Shard& shard = shards[static_cast<size_t>(r)];
    shard.first_expert = experts * r / ranks;
    shard.num_experts = ranks == 1 ? 0 : experts * (r + 1) / ranks - shard.first_expert;
    shard.shared_experts = r == 0;
  }
  return shards;
}

ExpertPlacement OwnersOf(const MoeModelSpec& model, const std::vector<Shard>& shards) {
  ExpertPlacement placement;
  placement.ranks = static_cast<int>(shards.size());
  for (size_t l = 0; l < model.layers.size(); ++l) {
    auto& owners = placement.owners.emplace_back(static_cast<size_t>(model.layers[l].num_experts));
    for (int32_t r = 0; r < placement.ranks; ++r) {
      const Shard& shard = shards[static_cast<size_t>(r)];
      for (int e = 0; e < shard.num_experts; ++e) {
        owners[static_cast<size_t>(shard.first_expert + e)].push_back(r);
      }
      if (shard.experts.empty()) continue;
      for (const int32_t e : shard.experts[l]) owners[static_cast<size_t>(e)].push_back(r);
    }
  }
  return placement;
}

absl::StatusOr<std::vector<Shard>> PopularExperts(const MoeModelSpec& model, const RankLoad& load,
                                                  int ranks) {
  std::vector<std::vector<double>> loads;
  for (size_t l = 0; l < model.layers.size(); ++l) {
    loads.emplace_back(static_cast<size_t>(model.layers[l].num_experts));
    for (size_t s = 0; s < load.warm; ++s) {
      std::vector<int32_t> ids = load.steps[s].ids[l];
      if (load.phase == Phase::kDecode) {
        std::sort(ids.begin(), ids.end());
        ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
      }
      for (const int32_t e : ids) ++loads[l][static_cast<size_t>(e)];
    }
  }
  return PlaceExperts(model, loads, ranks);
}

}  // namespace moert::cli
