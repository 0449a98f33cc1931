// The change of an MoE block's output by quantizing one linear block of one expert (MxMoE, Sec. 4).
#ifndef MOERT_LIB_OFFLINE_SENSITIVITY_H_
#define MOERT_LIB_OFFLINE_SENSITIVITY_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/model.h"
#include "moert/scheme.h"
#include "offline/expert_mlp.h"
#include "offline/expert_quantizer.h"

namespace moert::offline {

struct SensitivitySettings {
  std::vector<Scheme> schemes;
  QuantMethod method = QuantMethod::kGptq;
  bool hadamard = false;
  int probe = -1;                   // one of the schemes, whose changes are to be returned
  OfflineDevice* device = nullptr;  // does what it can, to the same outcome but for rounding
};

struct ExpertChanges {
  /// [gate, up, down][scheme]: || change of the routed output ||_2 over the expert's tokens, each
  /// weighted by its router weight, when that block alone is in the scheme, activations of the
  /// schemes that round them included.
  std::vector<double> delta;
  /// [probe_rows, hidden] changes of the expert's output, not weighted, when gate and up, or down,
  /// are in the probe's scheme; empty without one, or without such rows.
  Floats gate_up, down;
};

/// Turns x, the tokens' inputs [rows, hidden], into the unquantized expert's outputs. The changes
/// of the first `probe_rows` rows are returned. The pool of `compute` has a single thread.
absl::StatusOr<ExpertChanges> ExpertSensitivity(
    const MoeLayerSpec& layer, const SensitivitySettings& settings, const ExpertMatrices& weights,
    absl::Span<const float> token_weights, int64_t probe_rows, const Compute& compute, Floats* x);

}  // namespace moert::offline

#endif  // MOERT_LIB_OFFLINE_SENSITIVITY_H_
