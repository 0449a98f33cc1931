// Keys and values of one sequence, kept as the panels of panel_gemm.h so that attention is two
// calls of the one matrix product.
#ifndef MOERT_EXAMPLES_HOST_KV_CACHE_H_
#define MOERT_EXAMPLES_HOST_KV_CACHE_H_

#include <cstdint>

#include "host/aligned.h"
#include "host/panel_gemm.h"
#include "host/token_model.h"
#include "moert/offline/hf_config.h"

namespace moert::host {

/// fp32, room for a fixed number of tokens. Not thread-safe, but different positions of one layer
/// may be written at the same time.
class KvCache final : public Sequence {
 public:
  KvCache(const HfConfig& config, int64_t max_tokens)
      : Sequence(max_tokens, (max_tokens + kPanelWidth - 1) / kPanelWidth * kPanelWidth),
        kv_heads_(config.num_key_value_heads),
        head_dim_(config.head_dim),
        keys_(config.num_hidden_layers * kv_heads_ * head_stride()),
        values_(config.num_hidden_layers * kv_heads_ * head_stride()) {}

  /// key, value: [head_dim]. position < capacity().
  void Store(int layer, int head, int64_t position, const float* key, const float* value) {
    float* k = keys_.data() + offset(layer, head) +
               position / kPanelWidth * head_dim_ * kPanelWidth + position % kPanelWidth;
    float* v = values_.data() + offset(layer, head) + position * kPanelWidth;
    for (int64_t d = 0; d < head_dim_; ++d) {
      k[d * kPanelWidth] = key[d];
      v[d / kPanelWidth * value_panel_stride() + d % kPanelWidth] = value[d];
    }
  }

  /// Panels of 16 positions: [capacity / 16][head_dim][16].
  const float* keys(int layer, int head) const { return keys_.data() + offset(layer, head); }
  int64_t key_panel_stride() const { return head_dim_ * kPanelWidth; }
  /// Panels of 16 channels: [head_dim / 16][capacity][16].
  const float* values(int layer, int head) const { return values_.data() + offset(layer, head); }
  int64_t value_panel_stride() const { return capacity() * kPanelWidth; }

  int64_t bytes() const { return static_cast<int64_t>((keys_.size() + values_.size()) * 4); }

 private:
  int64_t head_stride() const { return capacity() * head_dim_; }
  int64_t offset(int layer, int head) const {
    return (int64_t{layer} * kv_heads_ + head) * head_stride();
  }

  int64_t kv_heads_;
  int64_t head_dim_;
  // Zeros where nothing was stored yet: masked positions are multiplied by a probability of 0.
  AlignedVector<float> keys_;
  AlignedVector<float> values_;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_KV_CACHE_H_
