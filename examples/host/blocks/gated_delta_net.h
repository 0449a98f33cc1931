// Gated delta net (arXiv 2412.06464) as Qwen3-Next and Qwen3.5 have it: a short convolution, then
// one state matrix per head, which each position decays, updates and reads.
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_GATED_DELTA_NET_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_GATED_DELTA_NET_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/blocks/linear.h"
#include "host/blocks/mixer.h"
#include "host/blocks/norm.h"

namespace moert::host {

/// The state after a sequence's earlier positions, and the state after the current run.
class DeltaNetState final : public LayerState {
 public:
  DeltaNetState(int64_t recurrent, int64_t history) {
    for (auto& r : recurrent_) r.resize(recurrent);
    for (auto& h : history_) h.resize(history);
  }
  /// [value heads, key_dim, value_dim]
  const float* recurrent() const { return recurrent_[now_].data(); }
  float* next_recurrent() { return recurrent_[1 - now_].data(); }
  /// The convolution's last inputs: [kernel - 1, channels], the newest last.
  const float* history() const { return history_[now_].data(); }
  float* next_history() { return history_[1 - now_].data(); }
  void Commit() override { now_ = 1 - now_; }
  bool Rewinds() const override { return false; }

 private:
  int now_ = 0;
  AlignedVector<float> recurrent_[2], history_[2];
};

class GatedDeltaNet final : public Mixer {
 public:
  /// Reads model.layers.N.linear_attn.*.
  static absl::StatusOr<std::unique_ptr<Mixer>> Load(const Checkpoint& checkpoint,
                                                     const HfConfig& config, int layer);

  std::unique_ptr<LayerState> NewState(int64_t capacity) const override;
  void UseDevice(DeviceProducts* device) override {
    for (Linear* linear : {&in_, &out_}) linear->UseDevice(device);
  }
  void Forward(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* x, int64_t rows,
               float* out) override;

 private:
  absl::Status LoadConstants(const Checkpoint& checkpoint, const std::string& name, float norm_eps);
  DeltaNetState* State(const RowGroup& group) const {
    return static_cast<DeltaNetState*>(group.sequence->layer(layer_));
  }
  const float* Projected(int64_t row) const { return projected_.data() + row * in_.out(); }
  void Convolve(const RowGroup& group, int64_t index);
  void KeepHistory(const RowGroup& group);
  // Runs all rows of a group through one value head.
  void Recur(const RowGroup& group, int head);
  void Gate(int64_t row);

  int layer_ = 0;
  DeltaNetConfig sizes_;
  int per_key_ = 1;       // value heads that share a key head
  int64_t keys_ = 0;      // channels of all keys, and of all queries
  int64_t values_ = 0;    // of all values, and of their gates
  int64_t channels_ = 0;  // of the convolution: queries, keys, values
  Linear in_;             // the convolution's channels, gates, betas, decays
  Linear out_;
  std::vector<float> convolution_;     // [kernel, channels]
  std::vector<float> rate_, dt_bias_;  // [value heads]
  Norm norm_;
  AlignedVector<float> projected_;  // [rows, in_.out()]
  AlignedVector<float> convolved_;  // [rows, channels_]
  AlignedVector<float> mixed_;      // [rows, values_]
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_GATED_DELTA_NET_H_
