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
    int layer = 0;  // the layer whose states, KvPanels, are read
    int heads = 0, kv_heads = 0;
    int64_t key_dim = 0, value_dim = 0;  // value_dim: a multiple of 16
    int64_t head_stride = 0;             // floats from one head's query to the next's
    float scale = 1.0f;
    MixerConfig mixer;
    int chooser = -1;  // layer whose IndexedPanels states hold the positions that rows see; -1: all
    std::vector<float> sinks;  // [heads]: attention sinks, scores without a value; or empty
  };

  Attend() = default;
  explicit Attend(Shape shape) : shape_(std::move(shape)) {}

  /// queries: [rows, heads, head_stride], of which the first key_dim count; mixed: [rows, heads,
  /// value_dim]. Keys and values of all rows are stored.
  void Forward(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* queries,
               float* mixed);

 private:
  // A unit of work: query rows of a group against one key head. Either many rows of one query head,
  // or one row of several query heads.
  struct Block {
    const RowGroup* group;
    int64_t first;  // row within the group
    int64_t rows;
    int head;
    int heads;  // 1 unless rows is 1
  };
  // Scratch of a worker. Gathered keys and values are kept only for one call, because those of all
  // layers would be large.
  struct Scratch {
    AlignedVector<float>* scores = nullptr;
    std::unique_ptr<KvPanels> gathered;
  };
  // Splits a group into blocks for `threads` threads.
  void Divide(const RowGroup& group, int threads);
  // Adds rows [first, end) as blocks of one row and at most `most` heads.
  void DivideRows(const RowGroup& group, int64_t first, int64_t end, int64_t most, int threads);
  // Floats that a block's scores need.
  int64_t ScoresOf(const Block& block) const;
  void Run(const Block& block, const float* queries, float* mixed, Scratch* scratch);
  // Turns the scores of keys [first, end) into probabilities and zeros all others.
  void Softmax(int head, float* scores, int64_t first, int64_t end) const;
  // Which positions a group's rows see; null: everything up to their own.
  const ChosenBlocks* ChosenOf(const RowGroup& group) const;
  // Gathers the keys and values that a row at `position` has chosen; returns their number.
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
