#include "strategies/initial_high.h"

#include <algorithm>
#include <numeric>

#include "base/status_macros.h"
#include "fmt/format.h"

namespace moert {

absl::StatusOr<InitialHigh> InitialHigh::Make(const StrategyContext& context) {
  InitialHigh initial;
  MOERT_ASSIGN_OR_RETURN(initial.given_, context.params.Experts("hot"));
  if (context.calibration == nullptr) return initial;
  if (context.params.Has("hot")) {
    return absl::InvalidArgumentError(
        "keys 'hot' and 'calibration' both say which experts are high from the start: give one");
  }
  initial.calibration_ = *context.calibration;
  return initial;
}

absl::StatusOr<PrecisionDecision> InitialHigh::Choose(const PrecisionSnapshot& snapshot) const {
  PrecisionDecision decision;
  decision.promote = given_;
  if (!calibration_.has_value()) return decision;
  const MoeModelSpec& model = *snapshot.context.model;
  const std::vector<RoutingStatistics::Layer>& layers = calibration_->layers;
  if (layers.size() != model.layers.size()) {
    return absl::InvalidArgumentError(fmt::format("{}: is of a model of {} MoE layers, not of {}",
                                                  calibration_->file, layers.size(),
                                                  model.layers.size()));
  }
  for (size_t l = 0; l < layers.size(); ++l) {
    const std::vector<int64_t>& selections = layers[l].selections;
    const auto experts = static_cast<size_t>(model.layers[l].num_experts);
    if (selections.size() != experts) {
      return absl::InvalidArgumentError(
          fmt::format("{}: layer {} has {} experts there and {} in the model", calibration_->file,
                      l, selections.size(), experts));
    }
    std::vector<int32_t> order(experts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return selections[a] > selections[b]; });
    const int32_t held = std::min(snapshot.high_capacity[l], static_cast<int32_t>(experts));
    for (int32_t i = 0; i < held; ++i) {
      decision.promote.push_back({static_cast<int32_t>(l), order[i]});
    }
  }
  return decision;
}

}  // namespace moert
