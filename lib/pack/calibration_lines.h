// Calibration layers as lines of text, for files that grow.
#ifndef MOERT_LIB_PACK_CALIBRATION_LINES_H_
#define MOERT_LIB_PACK_CALIBRATION_LINES_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "moert/offline/calibration.h"

namespace moert {

/// Converts one layer to a line of text, for files that grow, and back. `num_experts` and `schemes`
/// determine how many numbers a line must have.
std::string LayerCalibrationToLine(const LayerCalibration& layer);
absl::StatusOr<LayerCalibration> LayerCalibrationFromLine(const std::string& line, int num_experts,
                                                          size_t schemes,
                                                          const std::string& source);

}  // namespace moert

#endif  // MOERT_LIB_PACK_CALIBRATION_LINES_H_
