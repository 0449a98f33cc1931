// The description of a model whose layers are all the same, for what only counts experts.
#ifndef MOERT_TESTS_SUPPORT_LAYERS_ALIKE_H_
#define MOERT_TESTS_SUPPORT_LAYERS_ALIKE_H_

#include <cstdint>

#include "moert/model.h"

namespace moert::test {

/// shared: width of the shared expert, 0: none.
inline MoeModelSpec LayersAlike(int layers, int experts, int64_t shared = 0) {
  MoeModelSpec model;
  for (int l = 0; l < layers; ++l) {
    MoeLayerSpec& layer = model.layers.emplace_back();
    layer.model_layer = l;
    layer.num_experts = experts;
    layer.hidden = 64;
    layer.intermediate = 64;
    layer.shared_intermediate = shared;
    layer.routing.top_k = 2;
  }
  return model;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_LAYERS_ALIKE_H_
