#include "quant/hadamard.h"

#include <cmath>
#include <random>
#include <vector>

#include "tests/support/catch.h"

namespace moert::test {
namespace {

std::vector<float> Normal(int64_t n, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = normal(rng);
  return v;
}

double Dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double{a[i]} * b[i];
  return sum;
}

TEST_CASE("the block is the largest power of two that divides k, at most 128") {
  CHECK(HadamardBlock(2048) == 128);
  CHECK(HadamardBlock(1408) == 128);
  CHECK(HadamardBlock(64) == 64);
  CHECK(HadamardBlock(96) == 32);
  CHECK(HadamardBlock(72) == 8);
  CHECK(HadamardBlock(7) == 1);
}

TEST_CASE("it is H D x by definition, block by block") {
  for (const int64_t k : {1, 8, 48, 64, 384}) {
    const int64_t block = HadamardBlock(k);
    const std::vector<float> x = Normal(k, 3);
    std::vector<float> y = x;
    ApplyHadamard(1, k, y.data());
    for (int64_t i = 0; i < k; ++i) {
      double expected = 0;
      for (int64_t j = 0; j < block; ++j) {
        // Sylvester's matrix: -1 to the number of common bits.
        const int sign = __builtin_parityll(static_cast<uint64_t>(i % block & j)) ? -1 : 1;
        expected += sign * HadamardSign(j) * x[i / block * block + j];
      }
      CHECK(y[i] == Approx(expected / std::sqrt(static_cast<double>(block))).margin(1e-5));
    }
  }
}

TEST_CASE("dot products survive when both sides are transformed") {
  for (const int64_t k : {64, 128, 1408, 72}) {
    std::vector<float> w = Normal(5 * k, 1), x = Normal(k, 2);
    std::vector<double> before;
    for (int64_t r = 0; r < 5; ++r) before.push_back(Dot(&w[r * k], x.data(), k));
    ApplyHadamard(5, k, w.data());
    ApplyHadamard(1, k, x.data());
    for (int64_t r = 0; r < 5; ++r) {
      CHECK(Dot(&w[r * k], x.data(), k) == Approx(before[r]).margin(1e-4));
    }
  }
}

TEST_CASE("an outlier, and a constant row, are spread over their block") {
  std::vector<float> x(256, 0.0f);
  x[17] = 1.0f;
  for (int64_t i = 128; i < 256; ++i) x[i] = 1.0f;
  ApplyHadamard(1, 256, x.data());
  for (int64_t i = 0; i < 128; ++i) CHECK(std::fabs(x[i]) == Approx(1 / std::sqrt(128.0)));
  for (int64_t i = 128; i < 256; ++i) CHECK(std::fabs(x[i]) <= 20 / std::sqrt(128.0) + 1e-4);
}

}  // namespace
}  // namespace moert::test
