// Which inputs of our parts of a graph need no copy. The scheduler keeps an input where it was made
// until the part that asks for it first begins, and CUDA computes in order: that part may read it
// there. Should another part of ours use it too, it needs the copy.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_INPUT_USE_H_
#define MOERT_EXAMPLES_GGML_BACKEND_INPUT_USE_H_

#include <ggml.h>

#include <unordered_map>
#include <utility>

namespace moert_ggml {

class InputUse {
 public:
  /// While a graph is planned: its parts in their order.
  void Plan(const ggml_cgraph* part);
  /// Whether `copy` is read by one part alone.
  bool Once(const ggml_tensor* copy) const;

  // While a graph is computed.

  /// `copy` is not made: `input` stands for it in the part that comes next.
  void Skip(ggml_tensor* copy, ggml_tensor* input) { skipped_[copy] = input; }
  /// Null: it was made, or is no copy.
  ggml_tensor* InputOf(const ggml_tensor* copy) const;
  /// Pairs of copy and input that were skipped, and are not any more.
  std::unordered_map<ggml_tensor*, ggml_tensor*> TakeSkipped() {
    return std::exchange(skipped_, {});
  }
  void EndPart() { skipped_.clear(); }

 private:
  const void* graph_ = nullptr;  // of the last part
  const void* last_ = nullptr;   // its nodes
  // For every source of nodes that no node of its part makes, the part, or null: several.
  std::unordered_map<const ggml_tensor*, const void*> parts_;
  std::unordered_map<ggml_tensor*, ggml_tensor*> skipped_;
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_INPUT_USE_H_
