// A layer that tests cut into shards, and a routing of its tokens.
#ifndef MOERT_TESTS_GPU_SHARD_INPUTS_H_
#define MOERT_TESTS_GPU_SHARD_INPUTS_H_

#include <cstdint>
#include <random>
#include <vector>

#include "tests/support/synthetic_source.h"

namespace moert::test {

inline SyntheticShape ShardedShape() {
  SyntheticShape shape;
  shape.experts = 16;
  shape.top_k = 4;
  shape.hidden = 128;
  shape.intermediate = 256;
  shape.shared_intermediate = 128;
  return shape;
}

struct Routing {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

/// Over the experts of the first layer.
inline Routing RandomRouting(const MoeModelSpec& model, int64_t rows) {
  const MoeLayerSpec& layer = model.layers[0];
  std::mt19937 random(5);
  Routing routing;
  for (int64_t t = 0; t < rows; ++t) {
    const auto first = static_cast<int32_t>(random() % layer.num_experts);
    for (int j = 0; j < layer.routing.top_k; ++j) {
      routing.ids.push_back((first + j * 5) % layer.num_experts);
      routing.weights.push_back(0.1f + 0.05f * static_cast<float>(random() % 10));
    }
  }
  return routing;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_SHARD_INPUTS_H_
