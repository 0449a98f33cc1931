// Attention of DeepSeek-V4: one key head, whose keys are also the values, over a window and over
// entries before it that stand for several positions each.
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_COMPRESSED_ATTENTION_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_COMPRESSED_ATTENTION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/blocks/attend_entries.h"
#include "host/blocks/compressor.h"
#include "host/blocks/head_linear.h"
#include "host/blocks/lightning_indexer.h"
#include "host/blocks/linear.h"
#include "host/blocks/mixer.h"
#include "host/blocks/norm.h"

namespace moert::host {

/// The last channels of a head are rotated. Keys are also the values, which therefore carry the
/// rotation of their position; the output is rotated back by that of the query. Each group of heads
/// is projected to fewer channels before the output projection.
class CompressedAttention final : public Mixer {
 public:
  /// Reads layers.N.attn.*.
  static absl::StatusOr<std::unique_ptr<Mixer>> Load(const Checkpoint& checkpoint,
                                                     const HfConfig& config, int layer,
                                                     const Rope* rope);

  std::unique_ptr<LayerState> NewState(int64_t capacity) const override;
  void UseDevice(DeviceProducts* device) override;
  void Forward(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* x, int64_t rows,
               float* out) override;

 private:
  absl::Status LoadProjections(const Checkpoint& checkpoint, const HfConfig& config,
                               const std::string& name);
  absl::Status LoadEntries(const Checkpoint& checkpoint, const HfConfig& config,
                           const std::string& name);
  void Prepare(const RowGroup& group, int64_t index);
  void StoreEntries(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* x,
                    int64_t rows);
  void RotateBack(const RowGroup& group, int64_t index);

  int layer_ = 0;
  int heads_ = 0;
  int64_t head_dim_ = 0;
  CompressedAttentionConfig sizes_;
  float eps_ = 0.0f;
  const Rope* rope_ = nullptr;
  Linear q_down_, q_, kv_, o_;
  HeadLinear o_down_;  // one matrix per group
  Norm q_norm_, kv_norm_;
  Compressor compressor_;     // empty: only a window
  LightningIndexer indexer_;  // empty: rows see all entries
  AttendEntries attend_;
  AlignedVector<float> latents_, queries_, keys_, mixed_, groups_;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_COMPRESSED_ATTENTION_H_
