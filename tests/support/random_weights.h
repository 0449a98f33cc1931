// Values that quantizers are tried on.
#ifndef MOERT_TESTS_SUPPORT_RANDOM_WEIGHTS_H_
#define MOERT_TESTS_SUPPORT_RANDOM_WEIGHTS_H_

#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

namespace moert::test {

inline constexpr int kWeightKinds = 9;

/// As weights are (0), and as they are not: heavy tails, one sign, few distinct ones, very small
/// and very large ones, an outlier, all negative, all zero.
inline std::vector<float> DrawWeights(int kind, size_t count, std::mt19937* random) {
  std::normal_distribution<float> normal(0, 0.03f);
  std::vector<float> values(count);
  for (float& v : values) {
    v = normal(*random);
    if (kind == 1) v = std::copysign(v * v * 100, v);
    if (kind == 2) v = std::fabs(v) + 0.1f;
    if (kind == 3) v = 0.01f * std::nearbyint(v * 40);
    if (kind == 4) v *= 1e-6f;
    if (kind == 5) v *= 1e4f;
    if (kind == 7) v = -std::fabs(v);
    if (kind == 8) v = 0;
  }
  if (kind == 6) values[count / 2] = 3;
  return values;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_RANDOM_WEIGHTS_H_
