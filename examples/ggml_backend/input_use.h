// Finds the inputs of our parts of a graph that need no copy. The scheduler keeps an input in place
// until the part that first asks for it begins, and CUDA computes in order: that part may read the
// original. If another of our parts uses the input too, it needs the copy.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_INPUT_USE_H_
#define MOERT_EXAMPLES_GGML_BACKEND_INPUT_USE_H_

#include <ggml.h>

#include <unordered_map>
#include <utility>

namespace moert_ggml {

class InputUse {
 public:
  /// While a graph is planned: its parts, in order.
  void Plan(const ggml_cgraph* part);
  /// Whether only one part reads `copy`.
  bool Once(const ggml_tensor* copy) const;

  // While a graph is computed.

  /// Skips making `copy`: the next part reads `input` in its place.
  void Skip(ggml_tensor* copy, ggml_tensor* input) { skipped_[copy] = input; }
  /// The original of a skipped copy; null: the copy was made, or this is no copy.
  ggml_tensor* InputOf(const ggml_tensor* copy) const;
  /// Returns the pairs of skipped copy and input, and forgets them.
  std::unordered_map<ggml_tensor*, ggml_tensor*> TakeSkipped() {
    return std::exchange(skipped_, {});
  }
  void EndPart() { skipped_.clear(); }

 private:
  const void* graph_ = nullptr;  // of the last part
  const void* last_ = nullptr;   // its nodes
  // For every source of nodes that no node of its own part makes: the part that reads it, or null
  // if several do.
  std::unordered_map<const ggml_tensor*, const void*> parts_;
  std::unordered_map<ggml_tensor*, ggml_tensor*> skipped_;
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_INPUT_USE_H_
