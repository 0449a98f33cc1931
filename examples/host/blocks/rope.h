// Rotary position embeddings with the scaling kinds of published models.
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_ROPE_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_ROPE_H_

#include <cstdint>
#include <vector>

#include "moert/offline/rope_config.h"

namespace moert::host {

/// Rotates pairs of a head's first channels by position times a frequency for each pair (RoFormer,
/// arXiv 2104.09864): the two halves of GPT-NeoX and Llama, or neighbours. Pairs and frequencies
/// follow RopeConfig.
class Rope {
 public:
  explicit Rope(const RopeConfig& config);

  /// Makes positions 0..length-1 available. Not thread-safe; Rotate is.
  void Extend(int64_t length);

  /// Which set of frequencies a sequence of at most `max_tokens` tokens uses: 0, or 1 for LongRoPE
  /// beyond the model's original context. It belongs to a sequence for good: keys that are already
  /// in a cache keep the rotation they were stored with.
  int SetOf(int64_t max_tokens) const {
    return sets_.size() > 1 && max_tokens > original_positions_ ? 1 : 0;
  }

  /// x: [config.dim], rotated in place.
  void Rotate(int set, int64_t position, float* x) const { Rotate(set, position, interleaved_, x); }
  /// Rotates with the pairing that `interleaved` says instead of RopeConfig's.
  void Rotate(int set, int64_t position, bool interleaved, float* x) const;
  /// Undoes Rotate, except for the scaling of cosine and sine.
  void RotateBack(int set, int64_t position, float* x) const;

  /// At most two.
  int num_sets() const { return static_cast<int>(sets_.size()); }
  /// Frequencies [config.dim / 2]; attention_factor scales their cosines and sines.
  const std::vector<float>& inverse_frequencies(int set) const { return sets_[set].frequencies; }
  float attention_factor(int set) const { return sets_[set].attention_factor; }

 private:
  struct Set {
    std::vector<float> frequencies;
    float attention_factor = 1.0f;
    std::vector<float> table;  // [length][cos half, sin half]
  };
  /// Rotates forward, or back where `sign` is -1.
  void Turn(int set, int64_t position, bool interleaved, float sign, float* x) const;

  const int64_t half_;
  const bool interleaved_;
  const int64_t original_positions_;
  std::vector<Set> sets_;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_ROPE_H_
