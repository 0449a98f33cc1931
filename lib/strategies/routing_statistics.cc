#include "strategies/routing_statistics.h"

#include <utility>

#include "base/status_macros.h"
#include "moert/env.h"
#include "moert/offline/calibration.h"

namespace moert {

absl::StatusOr<RoutingStatistics> ReadRoutingStatistics(const std::string& path) {
  MOERT_ASSIGN_OR_RETURN(Calibration calibration, ReadCalibration(path, Env::Default()));
  RoutingStatistics statistics{path, {}};
  for (LayerCalibration& layer : calibration.layers) {
    statistics.layers.push_back({std::move(layer.selections), layer.cross_layer_accuracy});
  }
  return statistics;
}

}  // namespace moert
