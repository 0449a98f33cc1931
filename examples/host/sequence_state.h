// The decoder's state of one sequence: one state per layer, of a type that fits the layer.
#ifndef MOERT_EXAMPLES_HOST_SEQUENCE_STATE_H_
#define MOERT_EXAMPLES_HOST_SEQUENCE_STATE_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "host/token_model.h"

namespace moert::host {

/// The state of one layer. A block may compute the positions after the sequence's current length
/// more than once; only the last run counts, from Commit on. At length 0 the state is that of a new
/// sequence, whatever it holds.
class LayerState {
 public:
  virtual ~LayerState() = default;
  /// Makes the positions of the last run part of the sequence.
  virtual void Commit() {}
  /// Whether the state can be truncated to any shorter length.
  virtual bool Rewinds() const { return true; }
};

class SequenceState final : public Sequence {
 public:
  SequenceState(int64_t max_tokens, int64_t capacity,
                std::vector<std::unique_ptr<LayerState>> layers)
      : Sequence(max_tokens, capacity, AllRewind(layers)), layers_(std::move(layers)) {}

  LayerState* layer(int index) const { return layers_[index].get(); }
  /// Appends the next `tokens` positions, which have been run.
  void Advance(int64_t tokens) {
    for (const auto& layer : layers_) layer->Commit();
    set_length(length() + tokens);
  }

 private:
  static bool AllRewind(const std::vector<std::unique_ptr<LayerState>>& layers) {
    return std::all_of(layers.begin(), layers.end(),
                       [](const auto& layer) { return layer == nullptr || layer->Rewinds(); });
  }

  const std::vector<std::unique_ptr<LayerState>> layers_;
};

/// Consecutive rows of a batch that belong to one sequence, at positions sequence->length() onward.
struct RowGroup {
  SequenceState* sequence = nullptr;
  int64_t first_row = 0;
  int64_t rows = 0;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_SEQUENCE_STATE_H_
