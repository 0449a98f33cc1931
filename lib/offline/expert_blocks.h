// The linear blocks of one expert, and its tokens: what quantizing a block does to the output. On
// the CPU or a device.
#ifndef MOERT_LIB_OFFLINE_EXPERT_BLOCKS_H_
#define MOERT_LIB_OFFLINE_EXPERT_BLOCKS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/model.h"
#include "moert/offline/tensor_names.h"
#include "moert/scheme.h"
#include "offline/device_expert.h"
#include "offline/expert_mlp.h"
#include "offline/offline_device.h"
#include "offline/sensitivity.h"

namespace moert::offline {

class ExpertBlocks {
 public:
  virtual ~ExpertBlocks() = default;

  /// Before changes; [rows], how much each token counts.
  virtual absl::Status Prepare(absl::Span<const float> token_weights) = 0;
  /// Begins the changes of a scheme that is not bf16.
  virtual absl::Status Begin(const RecordLayout& layout) = 0;
  /// || weighted change of the output ||_2 when one block is in that scheme.
  virtual absl::StatusOr<double> Change(Projection block) = 0;
  /// Behind all three, down last: the first rows of the changes with gate and up, and with down.
  virtual absl::Status LastChanges(int64_t rows, ExpertChanges* changes) = 0;
  /// The unquantized expert's, [rows, hidden].
  virtual absl::Status Outputs(Floats* y) = 0;
};

/// `x`: the tokens' inputs, borrowed as everything else.
std::unique_ptr<ExpertBlocks> BlocksOnCpu(const MoeLayerSpec& layer,
                                          const SensitivitySettings& settings,
                                          const ExpertMatrices& weights, const Compute& compute,
                                          const Floats& x);
/// Null where the CPU is to do it.
std::unique_ptr<ExpertBlocks> BlocksOnDevice(const MoeLayerSpec& layer,
                                             const SensitivitySettings& settings,
                                             const ExpertMatrices& weights, const Floats& x);

}  // namespace moert::offline

#endif  // MOERT_LIB_OFFLINE_EXPERT_BLOCKS_H_
