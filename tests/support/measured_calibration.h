// A calibration with an end-to-end loss, made up: what a block's scheme costs halves with every
// bit.
#ifndef MOERT_TESTS_SUPPORT_MEASURED_CALIBRATION_H_
#define MOERT_TESTS_SUPPORT_MEASURED_CALIBRATION_H_

#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "moert/offline/calibration.h"

namespace moert::test {

/// `worst`: nats a token that the whole model is to lose in the last of `schemes`, about. Experts
/// differ.
inline Calibration MeasuredCalibration(MoeModelSpec model, const std::vector<std::string>& schemes,
                                       double worst) {
  Calibration c;
  c.model = std::move(model);
  c.tokens = 1000;
  c.window = 100;
  c.tokens_checksum = "0123456789abcdef";
  c.method = "rtn";
  for (const std::string& name : schemes) c.schemes.push_back(*Scheme::Parse(name));
  c.probe_tokens = 100;
  c.probe_scheme = c.schemes.back();
  std::mt19937 rng(3);
  const double blocks = kLinearBlocks * static_cast<double>(c.model.total_experts());
  for (const MoeLayerSpec& spec : c.model.layers) {
    LayerCalibration& layer = c.layers.emplace_back();
    const auto experts = static_cast<size_t>(spec.num_experts);
    layer.selections.assign(experts, 100);
    layer.weight_sums.assign(experts, 30);
    layer.output_norm = 10;
    layer.loss_per_square = {worst / blocks, worst / blocks};
    for (size_t i = 0; i < experts * kLinearBlocks; ++i) {
      const double importance = 0.5 + static_cast<double>(rng() % 1000) / 1000;
      for (const Scheme& s : c.schemes) {
        const int fewer = s.weight_bits - c.schemes.back().weight_bits;
        layer.delta.push_back(importance * std::exp2(-fewer));
      }
    }
  }
  return c;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_MEASURED_CALIBRATION_H_
