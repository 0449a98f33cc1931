// Causal attention of given queries over stored keys and values: scores, softmax, weighted sum.
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_ATTEND_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_ATTEND_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "host/aligned.h"
#include "host/blocks/indexed_panels.h"
#include "host/blocks/kv_panels.h"
#include "host/sequence_state.h"
#include "moert/offline/attention_config.h"
#include "moert/thread_pool.h"

namespace moert::host {

/// Not thread-safe: uses scratch.
class Attend {
 public:
  struct Shape {
    int layer = 0;  // whose states are KvPanels
    int heads = 0, kv_heads = 0;
    int64_t key_dim = 0, value_dim = 0;  // value_dim: a multiple of 16
    int64_t head_stride = 0;             // floats from one head's query to the next's
    float scale = 1.0f;
    MixerConfig mixer;
    int chooser = -1;  // the layer whose states, IndexedPanels, have what rows see; -1: everything
    std::vector<float> sinks;  // [heads]: a score that takes its share and gives nothing; or empty
  };

  Attend() = default;
  explicit Attend(Shape shape) : shape_(std::move(shape)) {}

  /// queries: [rows, heads, head_stride], of which the first key_dim count; mixed: [rows, heads,
  /// value_dim]. Keys and values of all rows are stored.
  void Forward(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* queries,
               float* mixed);

 private:
  // Query rows of a group that attend with heads of one key head: many rows of one head, or few
  // rows' worth of heads, one row each.
  struct Block {
    const RowGroup* group;
    int64_t first;  // row within the group
    int64_t rows;
    int head;
    int heads;  // 1 unless rows is 1
  };
  // A worker's. Gathered keys and values of all layers would be many: they last for one call.
  struct Scratch {
    AlignedVector<float>* scores = nullptr;
    std::unique_ptr<KvPanels> gathered;
  };
  // Adds the blocks of a group, for `threads` threads.
  void Divide(const RowGroup& group, int threads);
  // Adds rows [first, end) as blocks of one row and at most `most` heads.
  void DivideRows(const RowGroup& group, int64_t first, int64_t end, int64_t most, int threads);
  // Floats that a block's scores need.
  int64_t ScoresOf(const Block& block) const;
  void Run(const Block& block, const float* queries, float* mixed, Scratch* scratch);
  // Scores of keys [first, end) become probabilities; before and behind they become 0.
  void Softmax(int head, float* scores, int64_t first, int64_t end) const;
  // Which positions a group's rows see; null: everything up to their own.
  const ChosenBlocks* ChosenOf(const RowGroup& group) const;
  // Keys and values of what a row at `position` has chosen, side by side, in `gathered`; how many.
  int64_t Gather(const KvPanels& cache, int kv_head, const ChosenBlocks& choices, int64_t row,
                 int64_t position, std::unique_ptr<KvPanels>* gathered) const;
  // The first position that a query at `position` sees.
  int64_t FirstKey(int64_t position) const;

  Shape shape_;
  std::vector<Block> blocks_;
  std::vector<AlignedVector<float>> scores_;  // by worker
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_ATTEND_H_
