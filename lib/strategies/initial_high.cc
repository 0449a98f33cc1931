#include "strategies/initial_high.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "fmt/format.h"
#include "moert/env.h"
#include "moert/offline/calibration.h"

namespace moert {

absl::StatusOr<InitialHigh> InitialHigh::FromParams(const Params& params) {
  InitialHigh initial;
  MOERT_ASSIGN_OR_RETURN(initial.given_, params.Experts("hot"));
  if (!params.Has("calibration")) return initial;
  if (params.Has("hot")) {
    return absl::InvalidArgumentError(
        "keys 'hot' and 'calibration' both say which experts are high from the start: give one");
  }
  initial.calibration_ = params.Text("calibration", "");
  MOERT_ASSIGN_OR_RETURN(Calibration calibration,
                         ReadCalibration(initial.calibration_, Env::Default()));
  for (LayerCalibration& layer : calibration.layers) {
    initial.selections_.push_back(std::move(layer.selections));
  }
  return initial;
}

absl::StatusOr<std::vector<ExpertKey>> InitialHigh::Choose(
    const MoeModelSpec& model, absl::Span<const int32_t> capacity) const {
  if (calibration_.empty()) return given_;
  if (selections_.size() != model.layers.size()) {
    return absl::InvalidArgumentError(fmt::format("{}: is of a model of {} MoE layers, not of {}",
                                                  calibration_, selections_.size(),
                                                  model.layers.size()));
  }
  std::vector<ExpertKey> high;
  for (size_t l = 0; l < selections_.size(); ++l) {
    const std::vector<int64_t>& selections = selections_[l];
    const auto experts = static_cast<size_t>(model.layers[l].num_experts);
    if (selections.size() != experts) {
      return absl::InvalidArgumentError(
          fmt::format("{}: layer {} has {} experts there and {} in the model", calibration_, l,
                      selections.size(), experts));
    }
    std::vector<int32_t> order(experts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return selections[a] > selections[b]; });
    for (int32_t i = 0; i < std::min<int32_t>(capacity[l], model.layers[l].num_experts); ++i) {
      high.push_back({static_cast<int32_t>(l), order[i]});
    }
  }
  return high;
}

}  // namespace moert
