// The forward pass of a decoder-only transformer whose MoE blocks a MoeRunner computes.
#ifndef MOERT_EXAMPLES_HOST_MODEL_H_
#define MOERT_EXAMPLES_HOST_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/aligned.h"
#include "host/blocks/hyper_connection.h"
#include "host/blocks/linear.h"
#include "host/blocks/mixer.h"
#include "host/blocks/mlp.h"
#include "host/blocks/norm.h"
#include "host/blocks/side_experts.h"
#include "host/moe_runner.h"
#include "host/sequence_state.h"
#include "host/token_model.h"
#include "moert/offline/hf_config.h"
#include "moert/thread_pool.h"

namespace moert::host {

/// Embedding, layers of attention and (MoE or dense) feed-forward, final norm, head; fp32
/// arithmetic throughout. A token's result does not depend on what else is in its step. One thread
/// at a time.
class Decoder final : public TokenModel {
 public:
  /// Reads all but the routed and shared experts and routers of `checkpoint`. `pool` and `moe` are
  /// borrowed for the object's life.
  static absl::StatusOr<std::unique_ptr<Decoder>> Load(const Checkpoint& checkpoint,
                                                       const HfConfig& config, ThreadPool* pool,
                                                       MoeRunner* moe);

  absl::StatusOr<std::unique_ptr<Sequence>> NewSequence(int64_t max_tokens) override {
    return MakeSequence(max_tokens);
  }
  std::unique_ptr<SequenceState> MakeSequence(int64_t max_tokens) const;
  absl::Status Run(StepPhase phase, absl::Span<const SequenceInput> inputs) override;
  absl::Status RowLogits(int64_t first, int64_t rows, float* logits) override;
  absl::StatusOr<int32_t> Best(int64_t row) override;
  absl::Status Score(int64_t first, absl::Span<const int32_t> targets, double* nll) override;
  absl::Status Wait() override { return absl::OkStatus(); }
  int64_t max_rows() const override { return moe_->max_rows(); }
  double NowMs() const override { return moe_->NowMs(); }

  /// Like Run, but `hidden` also receives the final norm's output [rows, config().hidden_size].
  absl::Status Step(StepPhase phase, absl::Span<const SequenceInput> inputs,
                    AlignedVector<float>* hidden);

  /// hidden: [rows, hidden] -> logits [rows, vocab].
  void Logits(const float* hidden, int64_t rows, float* logits) const;

  // The forward pass one layer at a time, for callers that compute the MoE blocks themselves
  // (calibration); Load then needs no MoE runner. residual, normed: [rows, hidden], where rows are
  // positions 0, 1, ... of a sequence. Only for models with one residual stream.

  /// Computes dense products of many rows on the borrowed device from now on; see
  /// Linear::UseDevice.
  void UseDevice(DeviceProducts* device);
  /// Makes an empty sequence state for AttentionHalf of this layer alone.
  std::unique_ptr<SequenceState> MakeLayerSequence(int layer, int64_t max_tokens) const;

  void Embed(absl::Span<const int32_t> tokens, float* residual) const;
  /// Adds the output of a layer's mixer to residual; normed receives the input of its feed-forward
  /// block. Both hold several sequences of `rows` positions each, one after another; `scratch` has
  /// one MakeLayerSequence state for each.
  void AttentionHalf(int layer, absl::Span<const std::unique_ptr<SequenceState>> scratch,
                     int64_t rows, float* residual, float* normed);
  /// Adds the output of a dense layer's feed-forward block to residual.
  void DenseHalf(int layer, int64_t rows, const float* normed, float* residual);
  /// Applies the final norm; `hidden` is the input of Logits.
  void FinishHidden(int64_t rows, const float* residual, float* hidden);

  const HfConfig& config() const override { return config_; }
  ThreadPool* pool() const { return pool_; }
  MoeRunner* moe() const { return moe_; }

 private:
  struct Layer {
    HyperConnection mixer_streams, mlp_streams;
    Norm mixer_norm, mlp_norm;
    std::unique_ptr<Mixer> mixer;
    int moe_layer = -1;
    Mlp mlp;             // where moe_layer is -1
    SideExperts beside;  // instead of mlp_norm and mlp; empty: none
  };

  Decoder(const HfConfig& config, ThreadPool* pool, MoeRunner* moe);
  absl::Status LoadLayer(const Checkpoint& checkpoint, int index);
  const Rope* RopeOf(int layer) const;
  /// Number of floats in a row's residual streams.
  int64_t width() const { return config_.hidden_size * std::max(1, config_.hyper.streams); }
  void ExtendRopes(int64_t length);
  absl::Status RunLayers(absl::Span<const RowGroup> groups, int64_t rows);
  /// Resident-forward prediction: computes the next MoE block's input from a partial output of the
  /// current MoE block. The keys and values that it stores are overwritten by the real pass.
  bool PredictNext(int moe_layer, const float* partial, float* next_input);

  const HfConfig config_;
  ThreadPool* const pool_;
  MoeRunner* const moe_;
  Rope rope_;
  std::optional<Rope> window_rope_;  // for layers with windows, if it differs
  Linear embedding_;
  Linear head_;  // empty when tied to the embedding
  HyperConnection last_streams_;
  Norm final_norm_;
  std::vector<Layer> layers_;

  AlignedVector<float> residual_;        // [rows, width()]
  AlignedVector<float> normed_, delta_;  // [rows, hidden]
  AlignedVector<float> hidden_;          // of the last Run
  // The row groups of the current step, for PredictNext.
  absl::Span<const RowGroup> groups_;
  int64_t rows_ = 0;
  AlignedVector<float> predicted_residual_, predicted_normed_, predicted_delta_;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_MODEL_H_
