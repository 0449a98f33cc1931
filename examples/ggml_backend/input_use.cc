#include "input_use.h"

#include <ggml-impl.h>

#include <unordered_set>

namespace moert_ggml {

void InputUse::Plan(const ggml_cgraph* part) {
  // Parts are views of one array of nodes: where they do not ascend, another graph begins. One that
  // is not noticed leaves inputs that seem to be used again, and are copied.
  const void* const here = part->nodes;
  if (here <= last_) parts_.clear();
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
  const auto skipped = skipped_.find(copy);
  return skipped == skipped_.end() ? nullptr : skipped->second;
}

}  // namespace moert_ggml
