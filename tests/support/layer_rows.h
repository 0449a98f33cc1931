// Rows for every layer of a step, as predictions of the next layer are tried with.
#ifndef MOERT_TESTS_SUPPORT_LAYER_ROWS_H_
#define MOERT_TESTS_SUPPORT_LAYER_ROWS_H_

#include <cstdint>
#include <random>
#include <vector>

#include "run_engine.h"
#include "synthetic_source.h"

namespace moert::test {

/// Records that take a while on the link.
inline SyntheticShape WideShape() {
  SyntheticShape shape;
  shape.layers = 4;
  shape.experts = 64;
  shape.top_k = 8;
  shape.hidden = 256;
  shape.intermediate = 128;
  return shape;
}

/// A few inputs, always the same, that come again and again in any order: tokens whose paths recur.
class RecurringRows {
 public:
  static constexpr int kInputs = 8;

  RecurringRows(int64_t hidden, uint64_t seed) : order_(seed) {
    for (int i = 0; i < kInputs; ++i) {
      inputs_.push_back(HiddenProcess(hidden, 100 + static_cast<uint64_t>(i)).Next(1));
    }
  }
  std::vector<float> Next(int64_t rows) {
    std::vector<float> x;
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<float>& input = inputs_[order_() % inputs_.size()];
      x.insert(x.end(), input.begin(), input.end());
    }
    return x;
  }

 private:
  std::mt19937_64 order_;
  std::vector<std::vector<float>> inputs_;
};

/// Rows of every layer, one behind the other: mostly those of the layer before, whose predictions
/// are right then; one of `change` layers has others.
template <typename Rows>
std::vector<float> LayersOf(const SyntheticShape& shape, int64_t rows, Rows* next, unsigned change,
                            std::mt19937* rng) {
  std::vector<float> x;
  std::vector<float> last;
  for (int l = 0; l < shape.layers; ++l) {
    if (l == 0 || (*rng)() % change == 0) last = next->Next(rows);
    x.insert(x.end(), last.begin(), last.end());
  }
  return x;
}

inline std::vector<float> LayersOf(const SyntheticShape& shape, int64_t rows, HiddenProcess* next,
                                   std::mt19937* rng) {
  return LayersOf(shape, rows, next, 4, rng);
}
inline std::vector<float> LayersOf(const SyntheticShape& shape, int64_t rows, RecurringRows* next,
                                   std::mt19937* rng) {
  return LayersOf(shape, rows, next, 8, rng);
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_LAYER_ROWS_H_
