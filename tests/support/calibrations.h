// Calibrations as `moert-pack calibrate` would write them.
#ifndef MOERT_TESTS_SUPPORT_CALIBRATIONS_H_
#define MOERT_TESTS_SUPPORT_CALIBRATIONS_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "moert/model.h"
#include "moert/offline/calibration.h"
#include "moert/scheme.h"

namespace moert::test {

/// The calibration of a model whose experts were chosen so often, [layer][expert], and whose
/// w4a16_g128 all have the same error.
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

/// The versions that tests of `dynaexq:versions=` serve, most bits first, and the error of every
/// expert in each: squared they fall faster than bytes rise.
struct SchemeError {
  const char* name;
  double delta;
};
inline constexpr SchemeError kSchemeErrors[] = {
    {"w8a16_g128", 0.02}, {"w4a16_g128", 0.2}, {"w3a16_g128_asym", 0.45}, {"w2a16_g64_asym", 1.0}};

/// The calibration of a model whose experts are used alike; those of layer l are 1 + l times as
/// sensitive as those of layer 0.
inline Calibration CalibrationInSchemes(const MoeModelSpec& model) {
  std::vector<std::vector<int64_t>> alike;
  for (const MoeLayerSpec& layer : model.layers) {
    alike.emplace_back(static_cast<size_t>(layer.num_experts), 1000);
  }
  Calibration c = CalibrationOf(model, alike);
  c.schemes.clear();
  for (const SchemeError& scheme : kSchemeErrors) c.schemes.push_back(*Scheme::Parse(scheme.name));
  for (size_t l = 0; l < alike.size(); ++l) {
    std::vector<double>& delta = c.layers[l].delta;
    delta.clear();
    for (size_t i = 0; i < alike[l].size() * kLinearBlocks; ++i) {
      for (const SchemeError& scheme : kSchemeErrors) {
        delta.push_back(scheme.delta * std::sqrt(1.0 + static_cast<double>(l)));
      }
    }
  }
  return c;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_CALIBRATIONS_H_
