// Calibrations as `moert-pack calibrate` would write them.
#ifndef MOERT_TESTS_SUPPORT_CALIBRATIONS_H_
#define MOERT_TESTS_SUPPORT_CALIBRATIONS_H_

#include <cstdint>
#include <vector>

#include "moert/model.h"
#include "moert/offline/calibration.h"
#include "moert/scheme.h"

namespace moert::test {

/// Of a model whose experts were chosen so often, [layer][expert], and whose w4a16_g128 all have
/// the same error.
inline Calibration CalibrationOf(const MoeModelSpec& model,
                                 const std::vector<std::vector<int64_t>>& selections) {
  Calibration c;
  c.model = model;
  c.source_identity = "0123456789abcdef";
  c.tokens = 1000;
  c.window = 100;
  c.tokens_checksum = "0123456789abcdef";
  c.method = "hqq";
  c.schemes = {*Scheme::Parse("w4a16_g128")};
  for (const std::vector<int64_t>& layer : selections) {
    LayerCalibration l;
    l.selections = layer;
    l.weight_sums.assign(layer.size(), 0);
    l.output_norm = 1;
    l.delta.assign(layer.size() * kLinearBlocks, 0.1);
    c.layers.push_back(l);
  }
  return c;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_CALIBRATIONS_H_
