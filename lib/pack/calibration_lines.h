// Calibration layers as lines of text, for files that grow.
#ifndef MOERT_LIB_PACK_CALIBRATION_LINES_H_
#define MOERT_LIB_PACK_CALIBRATION_LINES_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "moert/offline/calibration.h"

namespace moert {

/// One layer as a line of text of its own, for files that grow, and back. `num_experts` and
/// `schemes` say how many numbers there must be.
std::string LayerCalibrationToLine(const LayerCalibration& layer);
absl::StatusOr<LayerCalibration> LayerCalibrationFromLine(const std::string& line, int num_experts,
                                                          size_t schemes,
                                                          const std::string& source);

}  // namespace moert

#endif  // MOERT_LIB_PACK_CALIBRATION_LINES_H_
