// The calibration file: what a model does with typical text, and what each candidate scheme would
// do to it. Written by `moert-pack calibrate`; docs/reference/calibration.md describes the fields.
#ifndef MOERT_OFFLINE_CALIBRATION_H_
#define MOERT_OFFLINE_CALIBRATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/model.h"
#include "moert/scheme.h"
#include "moert/tools/env.h"

namespace moert {

inline constexpr int kCalibrationFormatVersion = 1;
/// Linear blocks of an expert, in this order: gate, up, down.
inline constexpr int kLinearBlocks = 3;

/// One MoE layer over all calibration tokens.
struct LayerCalibration {
  std::vector<int64_t> selections = {};  // [E] tokens that chose the expert
  std::vector<double> weight_sums = {};  // [E] of their router weights
  double output_norm = 0;                // || routed experts' part of the block's output ||_2
  /// Share of the layer's true experts that its gate finds when it is given the input of the MoE
  /// layer before (Fate's cross-layer prediction); 0 for the first layer, where nothing predicts.
  double cross_layer_accuracy = 0;
  /// [E][block][scheme] || change of the block's output ||_2 when this linear block alone is in the
  /// scheme (MxMoE Sec. 4).
  std::vector<double> delta = {};
  /// For {gate and up, down}: what the whole model loses, in nats a token, by an error of this
  /// layer's block, over Delta squared. Empty where it was not measured.
  std::vector<double> loss_per_square = {};

  double Delta(int expert, int block, size_t scheme, size_t schemes) const {
    return delta[(static_cast<size_t>(expert) * kLinearBlocks + static_cast<size_t>(block)) *
                     schemes +
                 scheme];
  }
  /// The whole model's loss by this Delta, in nats per token. `loss_per_square` must be there.
  double Nats(int expert, int block, size_t scheme, size_t schemes) const {
    const double change = Delta(expert, block, scheme, schemes);
    return loss_per_square[block == kLinearBlocks - 1 ? 1 : 0] * change * change;
  }
};

struct Calibration {
  MoeModelSpec model = {};
  std::string source_identity = {};  // of the checkpoint
  int64_t tokens = 0;
  int64_t window = 0;
  std::string tokens_checksum = {};  // 16 hex digits
  std::string method = {};           // that quantized for `delta`: rtn, hqq or gptq
  bool hadamard = false;
  std::vector<Scheme> schemes = {};  // candidates
  /// The end-to-end loss was measured with errors of this candidate, over so many tokens; 0: not.
  int64_t probe_tokens = 0;
  Scheme probe_scheme = {};
  std::vector<LayerCalibration> layers = {};
};

/// The text of a calibration file.
std::string CalibrationToJson(const Calibration& calibration);

/// Reads and checks a whole file: legal model and schemes, every number finite and in range.
absl::StatusOr<Calibration> ReadCalibration(const std::string& path, Env* env);

}  // namespace moert

#endif  // MOERT_OFFLINE_CALIBRATION_H_
