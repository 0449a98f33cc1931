// Experts and their tokens for tests of what a device does offline.
#ifndef MOERT_TESTS_GPU_OFFLINE_INPUTS_H_
#define MOERT_TESTS_GPU_OFFLINE_INPUTS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device_array.h"
#include "moert/offline/calibration_model.h"
#include "moert/thread_pool.h"
#include "offline/dense_lanes.h"
#include "offline/expert_mlp.h"

namespace moert::test {

// Inputs with correlated channels, as hidden states have.
inline std::vector<float> Inputs(int64_t tokens, int64_t k, std::mt19937* rng) {
  std::vector<float> x = RandomFloats(static_cast<size_t>(tokens * k), rng, 0.5f);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 1; c < k; ++c) x[t * k + c] += 0.7f * x[t * k + c - 1];
  }
  return x;
}

/// Whether the CPU's vectors fuse products, as a device does. Else a few sums differ in their last
/// bits, and some codes tip over.
inline bool FusedOnCpu() { return std::string(DenseLaneSets()[0]->name) != "plain"; }

inline double EqualShare(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  double equal = 0;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) equal += a[i] == b[i] ? 1 : 0;
  return equal / static_cast<double>(std::max(a.size(), b.size()));
}

struct SmallExpert {
  MoeLayerSpec layer;
  offline::ExpertMatrices weights;
  std::vector<float> token_weights;
  offline::Floats x;
  std::unique_ptr<ThreadPool> pool = *CreateThreadPool({.threads = 1});

  SmallExpert(int64_t rows, uint32_t seed) {
    std::mt19937 rng(seed);
    layer.hidden = 256;
    layer.intermediate = 160;
    const auto size = static_cast<size_t>(layer.hidden * layer.intermediate);
    weights.gate = RandomFloats(size, &rng, 0.1f);
    weights.up = RandomFloats(size, &rng, 0.1f);
    weights.down = RandomFloats(size, &rng, 0.1f);
    x = Inputs(rows, layer.hidden, &rng);
    for (int64_t t = 0; t < rows; ++t) token_weights.push_back(0.1f + 0.001f * (t % 7));
  }
};

// Sums in ascending order.
class PlainProducts final : public MatrixProducts {
 public:
  void Multiply(ThreadPool*, const float* w, int64_t out, int64_t in, const float* x, int64_t rows,
                float* y) override {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t o = 0; o < out; ++o) {
        double sum = 0;
        for (int64_t i = 0; i < in; ++i) sum += double{x[r * in + i]} * w[o * in + i];
        y[r * out + o] = static_cast<float>(sum);
      }
    }
  }
};

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_OFFLINE_INPUTS_H_
