// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, Sec. 2.1): only a latent vector and
// one rotated key are kept per position.
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_LATENT_ATTENTION_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_LATENT_ATTENTION_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/blocks/attend.h"
#include "host/blocks/head_linear.h"
#include "host/blocks/lightning_indexer.h"
#include "host/blocks/linear.h"
#include "host/blocks/mixer.h"
#include "host/blocks/norm.h"

namespace moert::host {

/// The epsilon of the latents' norms; the published code does not take it from the configuration.
constexpr float kLatentEps = 1e-6f;

/// A head's keys and values are linear in the latent, so the query is multiplied by the key matrix
/// and the mixed latent by the value matrix ("absorbed"): all heads attend over the latents
/// themselves. Prompts run the same way, so that a token's bits do not depend on its step.
class LatentAttention final : public Mixer {
 public:
  /// Reads model.layers.N.self_attn.*.
  static absl::StatusOr<std::unique_ptr<Mixer>> Load(const Checkpoint& checkpoint,
                                                     const HfConfig& config, int layer,
                                                     const Rope* rope);

  std::unique_ptr<LayerState> NewState(int64_t capacity) const override;
  void UseDevice(DeviceProducts* device) override {
    for (Linear* linear : {&q_down_, &q_, &kv_down_, &o_}) linear->UseDevice(device);
    indexer_.UseDevice(device);
  }
  void Forward(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* x, int64_t rows,
               float* out) override;

 private:
  absl::Status LoadQueries(const Checkpoint& checkpoint, const HfConfig& config,
                           const std::string& name);
  void ProjectQueries(ThreadPool* pool, const float* x, int64_t rows);
  void Prepare(const RowGroup& group, int64_t index);

  int layer_ = 0;
  int heads_ = 0;
  LatentAttentionConfig sizes_;
  const Rope* rope_ = nullptr;
  Linear q_down_;  // empty: q_ takes the layer's input
  Norm q_norm_;
  Linear q_, kv_down_, o_;
  Norm kv_norm_;
  HeadLinear key_, value_;    // query -> latent, latent -> output
  LightningIndexer indexer_;  // empty: rows see everything, or what an earlier layer has chosen
  Attend attend_;
  AlignedVector<float> query_latent_, queries_, absorbed_, latents_, mixed_latents_, mixed_;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_LATENT_ATTENTION_H_
