#include "input_use.h"

#include <ggml-impl.h>

#include <unordered_set>

namespace moert_ggml {

void InputUse::Plan(const ggml_cgraph* part) {
  // Parts are views of one graph, share its use counts and come in the order of its nodes. Any
  // other order means another graph, or the same one again. Without this check, inputs would seem
  // to be used again and would be copied.
  const void* const here = part->nodes;
  if (part->use_counts != graph_ || here <= last_) parts_.clear();
  graph_ = part->use_counts;
  last_ = here;
  std::unordered_set<const ggml_tensor*> made;
  for (int i = 0; i < part->n_nodes; ++i) {
    for (const ggml_tensor* source : part->nodes[i]->src) {
      if (source == nullptr || made.contains(source)) continue;
      const auto [use, first] = parts_.emplace(source, here);
      if (!first && use->second != here) use->second = nullptr;
    }
    made.insert(part->nodes[i]);
  }
}

bool InputUse::Once(const ggml_tensor* copy) const {
  const auto use = parts_.find(copy);
  return use != parts_.end() && use->second != nullptr;
}

ggml_tensor* InputUse::InputOf(const ggml_tensor* copy) const {
  const auto skipped = skipped_.find(const_cast<ggml_tensor*>(copy));
  return skipped == skipped_.end() ? nullptr : skipped->second;
}

}  // namespace moert_ggml
