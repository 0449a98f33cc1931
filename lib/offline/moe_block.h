// The MoE blocks of a model for calibration: routing, and experts that are processed in parallel.
#ifndef MOERT_LIB_OFFLINE_MOE_BLOCK_H_
#define MOERT_LIB_OFFLINE_MOE_BLOCK_H_

#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/checkpoint_experts.h"
#include "moert/model.h"
#include "moert/router.h"
#include "moert/thread_pool.h"
#include "offline/calibration_stream.h"
#include "offline/expert_mlp.h"
#include "offline/offline_device.h"

namespace moert::offline {

/// Turns x [rows, hidden] into the outputs of an unquantized expert, on the CPU or a device.
/// `device` may be null.
absl::Status ForwardExpert(const MoeLayerSpec& layer, const ExpertMatrices& weights,
                           const Compute& compute, OfflineDevice* device, Floats* x);

class MoeBlocks {
 public:
  /// Reads the constants of all layers. Borrows its arguments.
  static absl::StatusOr<std::unique_ptr<MoeBlocks>> Create(const CheckpointExperts* experts,
                                                           const Compute& compute);

  /// One expert's job: turns x, its tokens' inputs, into its outputs (both [rows, hidden]). Runs on
  /// any thread; `single` is a pool of one thread for its products.
  using ExpertJob = absl::FunctionRef<absl::Status(int expert, const ExpertRows& tokens, Floats* x,
                                                   ThreadPool* single)>;
  /// Called in ascending order of experts when an expert's job is done.
  using ExpertDone = absl::FunctionRef<absl::Status(int expert)>;

  /// Brings `stream` to the block of `layer`, runs `job` for every expert (also those without
  /// tokens), and adds the block's output, shared experts included, to the stream. The same bits
  /// whatever the number of threads.
  absl::Status Run(int layer, CalibrationStream* stream, ExpertJob job, ExpertDone done);

  /// The same with the unmodified experts, after an earlier Run of the layer has read them.
  /// `device`, if any, does what it can, with the same outcome except for rounding. Does not
  /// evaluate the next layer's gate.
  absl::Status Forward(int layer, CalibrationStream* stream, OfflineDevice* device);

  const LayerConstants& constants(int layer) const { return constants_[layer]; }
  /// The routing of the last Run.
  const RoutingResult& routing() const { return routing_; }
  /// The share of the experts of the last Run's tokens that its gate finds in the inputs of the
  /// previous Run, one layer before; 0 if there was none.
  double cross_layer_accuracy() const { return cross_layer_accuracy_; }

 private:
  MoeBlocks(const CheckpointExperts* experts, const Compute& compute)
      : experts_(experts), compute_(compute) {}
  struct Part {
    ExpertRows tokens;
    Floats values;
    absl::Status status;
  };

  /// `done`: rows that already have their experts' outputs; null: none has.
  absl::Status RunExperts(int layer, CalibrationStream* stream, const std::vector<uint8_t>* done,
                          ExpertJob job, ExpertDone expert_done);
  void CompareWithPrediction(int layer);
  void AddOutputs(const std::vector<Part>& parts, int64_t hidden, float* residual) const;
  absl::Status AddShared(int layer, const float* inputs, int64_t rows, float* residual) const;

  const CheckpointExperts* const experts_;
  const Compute compute_;
  std::vector<LayerConstants> constants_;
  std::vector<std::unique_ptr<ThreadPool>> single_;  // by worker
  std::unique_ptr<Router> router_;
  RoutingResult routing_;
  int predicted_layer_ = -1;
  std::vector<float> predicted_;  // [tokens, experts] scores of predicted_layer_
  double cross_layer_accuracy_ = 0;
};

}  // namespace moert::offline

#endif  // MOERT_LIB_OFFLINE_MOE_BLOCK_H_
