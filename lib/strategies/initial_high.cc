#include "strategies/initial_high.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/status_macros.h"

namespace moert {
namespace {

struct Worth {
  ExpertKey key;
  double value;
};

// Promotes the `held` experts that are worth most; among equals the first ones.
void Promote(std::vector<Worth>* experts, int64_t held, PrecisionDecision* decision) {
  std::stable_sort(experts->begin(), experts->end(),
                   [](const Worth& a, const Worth& b) { return a.value > b.value; });
  held = std::min(held, static_cast<int64_t>(experts->size()));
  for (int64_t i = 0; i < held; ++i) decision->promote.push_back((*experts)[i].key);
  experts->clear();
}

}  // namespace

absl::StatusOr<InitialHigh> InitialHigh::Make(const StrategyContext& context,
                                              std::vector<double> weights) {
  InitialHigh initial;
  initial.weights_ = std::move(weights);
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
  MOERT_RETURN_IF_ERROR(CheckSameModel(*calibration_, *snapshot.context.model));
  std::vector<Worth> experts;
  for (int32_t l = 0; l < snapshot.context.model->num_layers(); ++l) {
    const std::vector<int64_t>& selections = calibration_->layers[l].selections;
    for (int32_t e = 0; e < static_cast<int32_t>(selections.size()); ++e) {
      const double weight = weights_.empty() ? 1 : weights_[experts.size()];
      experts.push_back({{l, e}, weight * static_cast<double>(selections[e])});
    }
    if (weights_.empty()) Promote(&experts, snapshot.high_capacity[l], &decision);
  }
  const absl::Span<const int32_t> capacity = snapshot.high_capacity;
  Promote(&experts, std::accumulate(capacity.begin(), capacity.end(), int64_t{0}), &decision);
  return decision;
}

}  // namespace moert
