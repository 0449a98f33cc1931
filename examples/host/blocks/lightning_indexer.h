// Selects the earlier positions that attention sees: small heads score them for each row, and the
// best are kept (DeepSeek-V3.2, arXiv 2512.02556, Sec. 2.1).
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_LIGHTNING_INDEXER_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_LIGHTNING_INDEXER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/aligned.h"
#include "host/blocks/compressor.h"
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

/// A position's score is the sum over heads of weight * max(0, query . key). Factors that all
/// scores share, the Hadamard transform and the rounding to fp8 of the published code are left out:
/// the first two do not change the order of scores. The indexer may score complete entries, which
/// stand for several positions (DeepSeek-V4), instead of positions. Not thread-safe: uses scratch.
class LightningIndexer {
 public:
  LightningIndexer() = default;
  /// Reads `name`wq_b, weights_proj, and wk and k_norm, or compressor.* where entries are chosen.
  /// `layer`: its states are IndexedPanels, or CompressedStates. `rope` is borrowed.
  static absl::StatusOr<LightningIndexer> Load(const Checkpoint& checkpoint, const HfConfig& config,
                                               int layer, const std::string& name,
                                               const Rope* rope);

  bool empty() const { return query_.empty(); }
  int64_t key_dim() const { return sizes_.head_dim; }
  CompressorTail NewTail() const;  // of a sequence's entries
  void UseDevice(DeviceProducts* device) {
    for (Linear* linear : {&query_, &key_, &weight_}) linear->UseDevice(device);
    compressor_.UseDevice(device);
  }

  /// x: [rows, hidden], latents: [rows, q_rank]. Stores the rows' keys, and leaves in each group's
  /// state which positions or entries its rows see. Rows with at most top_k see all of them.
  void Forward(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* x,
               const float* latents, int64_t rows);

 private:
  // Loads the weights that keys are made with.
  absl::Status LoadKeys(const Checkpoint& checkpoint, const HfConfig& config,
                        const std::string& name);
  void StoreKeys(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* x, int64_t rows);
  void StoreKey(const RowGroup& group, int64_t index);
  void RotateQueries(const RowGroup& group, int64_t index);
  // The number of positions or entries that a row chooses from.
  int64_t ChoicesOf(const Chooser& chooser) const { return chooser.positions() / rate_; }
  // Scores one slice of positions from `first` on; `products` is scratch.
  void Score(const Chooser& chooser, int64_t first, float* products, float* scores) const;
  void ScoreAndChoose(ThreadPool* pool, absl::Span<const Chooser> choosers);

  int layer_ = 0;
  IndexerConfig sizes_;
  int64_t rate_ = 1;     // positions per entry
  int64_t rotated_ = 0;  // the first rotated channel
  const Rope* rope_ = nullptr;
  Linear query_, key_, weight_;
  Norm key_norm_;
  Compressor compressor_;  // instead of key_ and key_norm_; empty: positions are chosen
  std::vector<Chooser> choosers_;
  AlignedVector<float> queries_, keys_, weights_, scores_;
  std::vector<AlignedVector<float>> products_;  // by worker
  std::vector<std::vector<int32_t>> orders_;    // likewise
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_LIGHTNING_INDEXER_H_
