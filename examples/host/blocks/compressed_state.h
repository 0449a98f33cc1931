// The state of attention that sees a window and entries that stand for earlier positions.
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_COMPRESSED_STATE_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_COMPRESSED_STATE_H_

#include <cstdint>
#include <utility>

#include "host/blocks/compressor.h"
#include "host/blocks/indexed_panels.h"
#include "host/sequence_state.h"

namespace moert::host {

/// Holds the keys of positions, which are also the values, and the entries; in layers with an
/// indexer also its keys of entries and its choices.
class CompressedState final : public IndexedPanels {
 public:
  /// capacity: positions; entries: number of entries. Both are multiples of 16.
  CompressedState(int64_t dim, int64_t index_dim, int64_t capacity, int64_t entries)
      : IndexedPanels(1, dim, dim, index_dim, 1, capacity, index_dim > 0 ? entries : 0),
        entries_(1, dim, dim, entries) {}

  KvPanels& entries() { return entries_; }
  const KvPanels& entries() const { return entries_; }
  CompressorTail& tail() { return tail_; }
  CompressorTail& index_tail() { return index_tail_; }

  void Commit() override {
    tail_.Commit();
    index_tail_.Commit();
  }
  bool Rewinds() const override { return tail_.empty(); }

 private:
  KvPanels entries_;
  CompressorTail tail_, index_tail_;
};

/// The state of a layer of CompressedAttention.
inline CompressedState& CompressedStateOf(const RowGroup& group, int layer) {
  return *static_cast<CompressedState*>(group.sequence->layer(layer));
}

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_COMPRESSED_STATE_H_
