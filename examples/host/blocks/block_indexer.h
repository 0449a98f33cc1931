// Selects the blocks of earlier positions that attention sees: for each row, a small head per key
// head scores the blocks, and the best are kept (MiniMax-M3).
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_BLOCK_INDEXER_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_BLOCK_INDEXER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/aligned.h"
#include "host/blocks/index_choice.h"
#include "host/blocks/linear.h"
#include "host/blocks/norm.h"
#include "host/blocks/rope.h"
#include "host/device_products.h"
#include "host/sequence_state.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/thread_pool.h"

namespace moert::host {

/// A block's score is the largest query . key of its positions up to the row's own. The last blocks
/// up to the row's own are always chosen. Not thread-safe: uses scratch.
class BlockIndexer {
 public:
  BlockIndexer() = default;
  /// Reads `name`index_{q,k}_{proj,norm}. `layer`: its states are IndexedPanels. `rope` is
  /// borrowed.
  static absl::StatusOr<BlockIndexer> Load(const Checkpoint& checkpoint, const HfConfig& config,
                                           int layer, const std::string& name, const Rope* rope);

  bool empty() const { return query_.empty(); }
  int64_t key_dim() const { return sizes_.head_dim; }
  int64_t block_size() const { return sizes_.block_size; }
  void UseDevice(DeviceProducts* device) {
    for (Linear* linear : {&query_, &key_}) linear->UseDevice(device);
  }

  /// x: [rows, hidden]. Stores the rows' keys, and leaves in each group's state which blocks its
  /// rows see. Rows with at most top_k blocks see all of them.
  void Forward(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* x, int64_t rows);

 private:
  int64_t BlocksOf(int64_t positions) const;
  void Finish(const Norm& norm, const RowGroup& group, int64_t index, float* head) const;
  // Scores the blocks of positions [first, end), `stride` scores per head; `products` is scratch.
  void Score(const Chooser& chooser, int64_t first, int64_t end, int64_t stride, float* products,
             float* scores) const;
  // Chooses a row's blocks for one key head, after raising the scores of those always chosen.
  void Choose(const Chooser& chooser, int head, float* scores, std::vector<int32_t>* order) const;
  void ScoreAndChoose(ThreadPool* pool, absl::Span<const Chooser> choosers);

  int layer_ = 0;
  IndexerConfig sizes_;
  int64_t slice_ = 0;  // positions that one job scores: whole blocks and whole panels
  const Rope* rope_ = nullptr;
  Linear query_, key_;
  Norm query_norm_, key_norm_;
  std::vector<Chooser> choosers_;
  AlignedVector<float> queries_, keys_, scores_;
  std::vector<AlignedVector<float>> products_;  // by worker
  std::vector<std::vector<int32_t>> orders_;    // likewise
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_BLOCK_INDEXER_H_
