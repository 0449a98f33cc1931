// Keys and values of one sequence in one layer, kept as the panels of panel_gemm.h so that
// attention is two calls of the one matrix product.
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_KV_PANELS_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_KV_PANELS_H_

#include <algorithm>
#include <cstdint>

#include "host/aligned.h"
#include "host/blocks/panel_gemm.h"
#include "host/sequence_state.h"

namespace moert::host {

/// fp32, room for a fixed number of positions, a multiple of 16. Not thread-safe, but different
/// positions may be written at the same time.
class KvPanels : public LayerState {
 public:
  /// value_dim: a multiple of 16; 0: keys alone.
  KvPanels(int kv_heads, int64_t key_dim, int64_t value_dim, int64_t capacity)
      : key_dim_(key_dim),
        value_dim_(value_dim),
        capacity_(capacity),
        keys_(kv_heads * capacity * key_dim),
        values_(kv_heads * capacity * value_dim) {}

  /// key: [key_dim], value: [value_dim]. position < capacity.
  void Store(int head, int64_t position, const float* key, const float* value) {
    float* k = keys_.data() + head * capacity_ * key_dim_ +
               position / kPanelWidth * key_panel_stride() + position % kPanelWidth;
    for (int64_t d = 0; d < key_dim_; ++d) k[d * kPanelWidth] = key[d];
    if (value_dim_ == 0) return;
    float* v = values_.data() + head * capacity_ * value_dim_ + position * kPanelWidth;
    for (int64_t d = 0; d < value_dim_; ++d) {
      v[d / kPanelWidth * value_panel_stride() + d % kPanelWidth] = value[d];
    }
  }

  /// Stores one position of a head of `from`, whose dimensions are the same.
  void Copy(const KvPanels& from, int from_head, int64_t from_position, int head,
            int64_t position) {
    const float* key = from.keys(from_head) + from_position / kPanelWidth * key_panel_stride() +
                       from_position % kPanelWidth;
    float* k = keys_.data() + head * capacity_ * key_dim_ +
               position / kPanelWidth * key_panel_stride() + position % kPanelWidth;
    for (int64_t d = 0; d < key_dim_ * kPanelWidth; d += kPanelWidth) k[d] = key[d];
    if (value_dim_ == 0) return;
    const float* value = from.values(from_head) + from_position * kPanelWidth;
    float* v = values_.data() + head * capacity_ * value_dim_ + position * kPanelWidth;
    for (int64_t panel = 0; panel < value_dim_ / kPanelWidth; ++panel) {
      std::copy_n(value + panel * from.value_panel_stride(), kPanelWidth,
                  v + panel * value_panel_stride());
    }
  }

  /// Panels of 16 positions: [capacity / 16][key_dim][16].
  const float* keys(int head) const { return keys_.data() + head * capacity_ * key_dim_; }
  int64_t key_panel_stride() const { return key_dim_ * kPanelWidth; }
  /// Panels of 16 channels: [value_dim / 16][capacity][16].
  const float* values(int head) const { return values_.data() + head * capacity_ * value_dim_; }
  int64_t value_panel_stride() const { return capacity_ * kPanelWidth; }

 private:
  const int64_t key_dim_, value_dim_, capacity_;
  // Zeros where nothing was stored yet: masked positions are multiplied by a probability of 0.
  AlignedVector<float> keys_;
  AlignedVector<float> values_;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_KV_PANELS_H_
