// Grouped-query attention: several query heads share one key and value head.
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_GROUPED_ATTENTION_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_GROUPED_ATTENTION_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/blocks/attend.h"
#include "host/blocks/block_indexer.h"
#include "host/blocks/linear.h"
#include "host/blocks/mixer.h"
#include "host/blocks/norm.h"

namespace moert::host {

/// Includes the variants of model families: normalized or clipped queries and keys, an output gate,
/// layers without RoPE.
class GroupedAttention final : public Mixer {
 public:
  /// Reads model.layers.N.self_attn.*.
  static absl::StatusOr<std::unique_ptr<Mixer>> Load(const Checkpoint& checkpoint,
                                                     const HfConfig& config, int layer,
                                                     const Rope* rope);

  std::unique_ptr<LayerState> NewState(int64_t capacity) const override;
  void UseDevice(DeviceProducts* device) override {
    for (Linear* linear : {&q_, &k_, &v_, &o_}) linear->UseDevice(device);
    indexer_.UseDevice(device);
  }
  void Forward(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* x, int64_t rows,
               float* out) override;

 private:
  absl::Status LoadNorms(const Checkpoint& checkpoint, const HfConfig& config,
                         const std::string& name);
  void Prepare(const RowGroup& group, int64_t index);
  void Clip(float* x, int64_t n) const;
  /// Applies the norm and the rotation to one head's query or key.
  void Finish(const Norm& norm, int set, int64_t position, float* head) const;

  int layer_ = 0;
  int heads_ = 0;
  int kv_heads_ = 0;
  int64_t head_dim_ = 0;      // of queries and keys
  int64_t value_dim_ = 0;     // of a head's values
  int64_t query_stride_ = 0;  // from head to head: a gate may follow the query
  float clip_ = 0.0f;
  float value_scale_ = 1.0f;
  bool value_norm_ = false;
  bool rotate_ = true;
  QkNorm qk_norm_ = QkNorm::kNone;
  float eps_ = 0.0f;  // of norms without weights
  QueryTemperature temperature_;
  const Rope* rope_ = nullptr;
  Linear q_, k_, v_, o_;  // v_ empty: the values are the keys before norm and rotation
  Norm q_norm_, k_norm_;
  BlockIndexer indexer_;  // empty: rows see all positions, or those in the window
  Attend attend_;
  AlignedVector<float> queries_, keys_, values_, mixed_;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_GROUPED_ATTENTION_H_
