// The change of an MoE block's output by quantizing one linear block of one expert (MxMoE, Sec. 4).
#ifndef MOERT_LIB_OFFLINE_SENSITIVITY_H_
#define MOERT_LIB_OFFLINE_SENSITIVITY_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/model.h"
#include "moert/offline/tensor_names.h"
#include "moert/scheme.h"
#include "offline/device_expert.h"
#include "offline/expert_mlp.h"
#include "offline/expert_quantizer.h"
#include "offline/offline_device.h"

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
  /// weighted by its router weight, when only that block is in the scheme, including rounded
  /// activations for schemes that round them.
  std::vector<double> delta;
  /// [probe_rows, hidden] unweighted changes of the expert's output when gate and up, or down, are
  /// in the probe's scheme; empty without a probe or without such rows.
  Floats gate_up, down;
};

/// Turns x, the tokens' inputs [rows, hidden], into the unquantized expert's outputs. The changes
/// of the first `probe_rows` rows are returned. The pool of `compute` has a single thread.
absl::StatusOr<ExpertChanges> ExpertSensitivity(
    const MoeLayerSpec& layer, const SensitivitySettings& settings, const ExpertMatrices& weights,
    absl::Span<const float> token_weights, int64_t probe_rows, const Compute& compute, Floats* x);

/// The linear blocks of one expert and its tokens: measures how quantizing a block changes the
/// output, on the CPU or a device.
class ExpertBlocks {
 public:
  virtual ~ExpertBlocks() = default;

  /// Call it before changes; [rows], the weight of each token.
  virtual absl::Status Prepare(absl::Span<const float> token_weights) = 0;
  /// Begins the changes of a scheme that is not bf16.
  virtual absl::Status Begin(const RecordLayout& layout) = 0;
  /// || weighted change of the output ||_2 when one block is in that scheme.
  virtual absl::StatusOr<double> Change(Projection block) = 0;
  /// Call it after all three blocks, down last: the first rows of the changes with gate and up, and
  /// with down.
  virtual absl::Status LastChanges(int64_t rows, ExpertChanges* changes) = 0;
  /// The unquantized expert's outputs, [rows, hidden].
  virtual absl::Status Outputs(Floats* y) = 0;
};

/// `x`: the tokens' inputs, borrowed as everything else.
std::unique_ptr<ExpertBlocks> BlocksOnCpu(const MoeLayerSpec& layer,
                                          const SensitivitySettings& settings,
                                          const ExpertMatrices& weights, const Compute& compute,
                                          const Floats& x);
/// Null if it is left to the CPU.
std::unique_ptr<ExpertBlocks> BlocksOnDevice(const MoeLayerSpec& layer,
                                             const SensitivitySettings& settings,
                                             const ExpertMatrices& weights, const Floats& x);

}  // namespace moert::offline

#endif  // MOERT_LIB_OFFLINE_SENSITIVITY_H_
