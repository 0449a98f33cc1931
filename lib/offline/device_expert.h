// One expert and its tokens on a device: computes the expert's outputs, and how they change when a
// block's weights change.
#ifndef MOERT_LIB_OFFLINE_DEVICE_EXPERT_H_
#define MOERT_LIB_OFFLINE_DEVICE_EXPERT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/offline/tensor_names.h"
#include "moert/scheme.h"
#include "offline/expert_mlp.h"
#include "offline/gptq.h"
#include "quant/quantized_matrix.h"

namespace moert {

/// One caller at a time. After an error nothing but the destructor may be called.
class DeviceExpert {
 public:
  virtual ~DeviceExpert() = default;

  /// Call it first. x: [rows, hidden].
  virtual absl::Status Load(const offline::ExpertMatrices& weights, const float* x) = 0;
  /// Replaces a block's weights, [out, in], from now on.
  virtual absl::Status SetWeights(Projection block, absl::Span<const float> weights) = 0;
  /// Computes h [rows, intermediate], the inputs of down, and after it y [rows, hidden].
  virtual absl::Status RunGateUp() = 0;
  virtual absl::Status RunDown() = 0;
  /// Load, then the whole computation.
  absl::Status Run(const offline::ExpertMatrices& weights, const float* x) {
    absl::Status status = Load(weights, x);
    if (status.ok()) status = RunGateUp();
    if (status.ok()) status = RunDown();
    return status;
  }
  virtual absl::Status Hidden(float* h) = 0;
  virtual absl::Status Outputs(float* y) = 0;

  // Takes any number of other weights after PrepareChanges, and returns how they change the output
  // (after Run) or the rounded weights (after Load).

  /// weights: [rows], the weight of each token.
  virtual absl::Status PrepareChanges(absl::Span<const float> token_weights) = 0;
  /// The moments of the inputs of gate and up, or of down, each input times its token's weight.
  virtual absl::StatusOr<InputMoments> Moments(bool down) = 0;
  /// Sets the factor by which GPTQ rounds those blocks from now on.
  virtual absl::Status SetFactor(bool down, const GptqFactor& factor) = 0;
  /// Sets the inputs of gate and up, and of down, for the changes from now on; null: those of Run.
  virtual absl::Status SetInputs(const float* x, const float* h) = 0;
  /// || weighted change of the output ||_2 with these weights of a block, [out, in].
  virtual absl::StatusOr<double> Change(Projection block, absl::Span<const float> weights) = 0;
  /// The same with its weights rounded by GPTQ; CanRound(layout).
  virtual absl::StatusOr<double> ChangeByGptq(Projection block, const MatrixLayout& layout) = 0;
  /// The block's weights rounded by GPTQ; CanRound(layout). The weights on the device stay
  /// unchanged.
  virtual absl::StatusOr<QuantizedMatrix> RoundByGptq(Projection block,
                                                      const MatrixLayout& layout) = 0;
  virtual bool CanRound(const MatrixLayout& layout) const = 0;
  /// The first `rows` rows of the changes with the last weights of gate and up together, and with
  /// those of down, which changed last: [rows, hidden] each.
  virtual absl::Status LastChanges(int64_t rows, float* gate_up, float* down) = 0;
};

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_DEVICE_EXPERT_H_
