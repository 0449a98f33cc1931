// The state of attention whose rows see only chosen positions.
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_INDEXED_PANELS_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_INDEXED_PANELS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "host/blocks/kv_panels.h"

namespace moert::host {

/// Which blocks of positions each row of a group sees, for each head of keys. Different rows may be
/// written at the same time.
class ChosenBlocks {
 public:
  /// Blocks have `block_size` positions, 1 where single positions are chosen.
  ChosenBlocks(int kv_heads, int64_t block_size) : kv_heads_(kv_heads), block_size_(block_size) {}

  /// Makes room for rows from `first` on to choose `count` blocks each; earlier rows see all.
  void Reset(int64_t first, int64_t rows, int64_t count) {
    first_ = first;
    count_ = count;
    blocks_.resize((rows - first) * kv_heads_ * count);
  }

  /// The chosen blocks, ascending. `row` must be one that chooses.
  absl::Span<const int32_t> Row(int64_t row, int kv_head) const {
    return absl::MakeConstSpan(blocks_).subspan(((row - first_) * kv_heads_ + kv_head) * count_,
                                                count_);
  }
  /// Storage for the blocks of a row that chooses.
  int32_t* row(int64_t row, int kv_head) {
    return blocks_.data() + ((row - first_) * kv_heads_ + kv_head) * count_;
  }
  /// The first row that chooses.
  int64_t first() const { return first_; }
  int64_t block_size() const { return block_size_; }
  /// The largest number of positions that a choosing row sees.
  int64_t width() const { return count_ * block_size_; }

 private:
  const int kv_heads_;
  const int64_t block_size_;
  int64_t first_ = 0, count_ = 0;
  std::vector<int32_t> blocks_;
};

/// Keys and values, the keys of the indexer, and its choices in the last run.
class IndexedPanels : public KvPanels {
 public:
  IndexedPanels(int kv_heads, int64_t key_dim, int64_t value_dim, int64_t index_dim,
                int64_t block_size, int64_t capacity)
      : IndexedPanels(kv_heads, key_dim, value_dim, index_dim, block_size, capacity, capacity) {}

  KvPanels& index_keys() { return index_keys_; }
  ChosenBlocks& chosen() { return chosen_; }
  const ChosenBlocks& chosen() const { return chosen_; }

 protected:
  /// index_capacity: keys of the indexer, a multiple of 16.
  IndexedPanels(int kv_heads, int64_t key_dim, int64_t value_dim, int64_t index_dim,
                int64_t block_size, int64_t capacity, int64_t index_capacity)
      : KvPanels(kv_heads, key_dim, value_dim, capacity),
        index_keys_(1, index_dim, 0, index_capacity),
        chosen_(kv_heads, block_size) {}

 private:
  KvPanels index_keys_;
  ChosenBlocks chosen_;
};

/// The state of a layer that has an indexer.
inline IndexedPanels& IndexedState(const RowGroup& group, int layer) {
  return *static_cast<IndexedPanels*>(group.sequence->layer(layer));
}

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_INDEXED_PANELS_H_
