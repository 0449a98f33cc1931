// Opaque experts with gates, and inputs by which the gates choose.
#ifndef MOERT_TESTS_GPU_OPAQUE_GATED_H_
#define MOERT_TESTS_GPU_OPAQUE_GATED_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "opaque_device.h"

namespace moert::test {

/// The gate of every layer scores expert e by x[e].
inline OpaqueModel Gated() {
  OpaqueModel model;
  for (MoeLayerSpec& layer : model.spec.layers) layer.routing.kind = RoutingKind::kSoftmaxTopK;
  return model;
}

inline std::shared_ptr<const ExpertSource> GatedSource(const OpaqueModel& model) {
  OpaqueWeights weights = model.InMemory();
  weights.gates = [](const WeightRead& read) {
    auto* const gate = static_cast<float*>(read.dst);
    for (int i = 0; i < kE * OpaqueModel::kHidden; ++i) {
      gate[i] = i / OpaqueModel::kHidden == i % OpaqueModel::kHidden ? 1.0f : 0.0f;
    }
    return absl::OkStatus();
  };
  return Source(model, std::move(weights));
}

inline std::vector<float> RandomRow(std::mt19937* random) {
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> x(OpaqueModel::kHidden);
  for (float& value : x) value = normal(*random);
  for (int e = 0; e < 4; ++e) x[static_cast<size_t>(e)] += 1;  // some are popular
  return x;
}

inline std::vector<int32_t> Chosen(const std::vector<float>& x) {
  std::vector<int32_t> ids(kE);
  std::iota(ids.begin(), ids.end(), 0);
  std::partial_sort(ids.begin(), ids.begin() + kK, ids.end(), [&](int32_t a, int32_t b) {
    return x[static_cast<size_t>(a)] > x[static_cast<size_t>(b)];
  });
  ids.resize(kK);
  return ids;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_OPAQUE_GATED_H_
