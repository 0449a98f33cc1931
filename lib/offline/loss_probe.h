// Measures how one MoE block's error affects the predictions of the whole model: the end-to-end
// loss, which a block's own Delta does not show. The MxMoE paper (Sec. 5.2) names this weakness:
// equal norms at the outputs of different layers do not mean equal losses.
//
// At every MoE layer a perturbed copy of some tokens is made: the layer's output as it would be
// with gate and up, or with down, of all its experts in one scheme. The copies pass the unquantized
// rest of the model side by side; the distance of their predictions from the true ones is the loss.
// loss.
#ifndef MOERT_LIB_OFFLINE_LOSS_PROBE_H_
#define MOERT_LIB_OFFLINE_LOSS_PROBE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/checkpoint_experts.h"
#include "offline/calibration_stream.h"
#include "offline/moe_block.h"
#include "offline/offline_device.h"
#include "offline/sensitivity.h"

namespace moert::offline {

/// Memory: 2 copies per MoE layer of `tokens` rows, 8 bytes per channel.
class LossProbe {
 public:
  /// Uses the first `tokens` rows, whole windows, of the measured stream. Borrows the other
  /// arguments; `device` may be null.
  static absl::StatusOr<std::unique_ptr<LossProbe>> Create(const ModelContext& context,
                                                           const CheckpointExperts* experts,
                                                           OfflineDevice* device, int64_t window,
                                                           int64_t tokens);

  /// Adds the experts of a layer, in ascending order.
  void AddExpert(const ExpertRows& tokens, const ExpertChanges& changes);
  /// Call it after `stream` has passed the block of `layer`.
  absl::Status EndLayer(int layer, CalibrationStream* stream);

  /// Call it at the end of the model. By layer, for {gate and up, down}: the mean Kullback-Leibler
  /// divergence (nats per token) of the perturbed predictions from the true ones. `hidden`: from
  /// the stream's FinishHidden.
  std::vector<std::array<double, 2>> Divergences(const float* hidden);

  int64_t tokens() const { return tokens_; }

 private:
  LossProbe(const ModelContext& context, OfflineDevice* device, int64_t window, int64_t tokens);

  const ModelContext context_;
  OfflineDevice* const device_;
  const int64_t tokens_;
  std::unique_ptr<MoeBlocks> blocks_;
  CalibrationStream copies_;  // two a layer passed
  std::array<Floats, 2> changes_;
};

}  // namespace moert::offline

#endif  // MOERT_LIB_OFFLINE_LOSS_PROBE_H_
