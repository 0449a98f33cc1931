// Causal grouped-query attention with rotary position embeddings and a KV cache a sequence.
#ifndef MOERT_EXAMPLES_HOST_ATTENTION_H_
#define MOERT_EXAMPLES_HOST_ATTENTION_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/kv_cache.h"
#include "host/linear.h"
#include "host/norm.h"
#include "host/rope.h"
#include "moert/offline/hf_config.h"
#include "moert/thread_pool.h"

namespace moert::host {

/// Consecutive rows of a batch that belong to one sequence, at positions cache->length() onward.
struct RowGroup {
  KvCache* cache = nullptr;
  int64_t first_row = 0;
  int64_t rows = 0;
};

/// The attention block of one layer. Not thread-safe: uses scratch.
class Attention {
 public:
  /// Reads model.layers.N.self_attn.*. `rope` is borrowed.
  static absl::StatusOr<Attention> Load(const Checkpoint& checkpoint, const HfConfig& config,
                                        int layer, const Rope* rope);

  /// x, out: [rows, hidden], all rows of all groups; may not overlap. The rope must reach the last
  /// position. Stores the new keys and values
  /// but leaves the caches' lengths. A row's result depends only on its sequence up to its
  /// position.
  void Forward(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* x, int64_t rows,
               float* out);

 private:
  // The part of a job: query rows of one group that attend with one head.
  struct Block {
    const RowGroup* group;
    int64_t first;  // within the group
    int64_t rows;
    int head;
  };
  void Prepare(const RowGroup& group, int64_t index);
  void Attend(const Block& block, AlignedVector<float>* scores);

  int layer_ = 0;
  int heads_ = 0;
  int kv_heads_ = 0;
  int64_t head_dim_ = 0;
  int64_t window_ = 0;
  float clip_ = 0.0f;
  QkNorm qk_norm_ = QkNorm::kNone;
  const Rope* rope_ = nullptr;
  Linear q_, k_, v_, o_;
  Norm q_norm_, k_norm_;

  AlignedVector<float> queries_, keys_, values_, mixed_;
  std::vector<AlignedVector<float>> scores_;  // by worker
  std::vector<Block> blocks_;
  std::vector<std::pair<const RowGroup*, int64_t>> rows_;  // by row: its group, its index in there
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_ATTENTION_H_
