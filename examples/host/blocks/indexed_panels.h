// The state of attention whose rows see chosen positions alone.
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_INDEXED_PANELS_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_INDEXED_PANELS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "host/blocks/kv_panels.h"

namespace moert::host {

/// Which positions each row of a group sees. Different rows may be written at the same time.
class ChosenPositions {
 public:
  /// A group's rows from `first` on choose `width` positions each; those in front see all.
  void Reset(int64_t first, int64_t rows, int64_t width) {
    first_ = first;
    width_ = width;
    positions_.resize((rows - first) * width);
  }

  /// Ascending; empty: all positions up to the row's own.
  absl::Span<const int32_t> Row(int64_t row) const {
    if (row < first_) return {};
    return absl::MakeConstSpan(positions_).subspan((row - first_) * width_, width_);
  }
  /// Where the positions of a row that chooses go.
  int32_t* row(int64_t row) { return positions_.data() + (row - first_) * width_; }
  /// The first row that chooses.
  int64_t first() const { return first_; }
  int64_t width() const { return width_; }

 private:
  int64_t first_ = 0, width_ = 0;
  std::vector<int32_t> positions_;
};

/// Keys and values, the keys that an indexer compares with, and what it chose in the last run.
class IndexedPanels final : public KvPanels {
 public:
  IndexedPanels(int64_t key_dim, int64_t value_dim, int64_t index_dim, int64_t capacity)
      : KvPanels(1, key_dim, value_dim, capacity), index_keys_(1, index_dim, 0, capacity) {}

  KvPanels& index_keys() { return index_keys_; }
  ChosenPositions& chosen() { return chosen_; }
  const ChosenPositions& chosen() const { return chosen_; }

 private:
  KvPanels index_keys_;
  ChosenPositions chosen_;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_INDEXED_PANELS_H_
