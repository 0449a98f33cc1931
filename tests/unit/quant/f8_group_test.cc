// Activations in e4m3 that share a power of two: against a search over all values of e4m3.
#include "quant/f8_group.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/bf16.h"
#include "tests/support/catch.h"

namespace moert {
namespace {

std::vector<float> Rounded(const std::vector<float>& x) {
  std::vector<float> rounded(x.size());
  RoundF8Group(x.data(), static_cast<int64_t>(x.size()), rounded.data());
  return rounded;
}

/// How far the nearest value of e4m3 times `scale` is.
double Distance(double x, double scale) {
  double least = std::numeric_limits<double>::infinity();
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;  // no number
    const double value = double{F8E4M3ToF32(static_cast<uint8_t>(code))} * scale;
    least = std::min(least, std::fabs(value - x));
  }
  return least;
}

TEST_CASE("values are the nearest of e4m3 times the smallest power of two that holds the largest") {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  for (const float size : {1e-20f, 1e-6f, 1.0f, 300.0f, 1e30f}) {
    std::vector<float> x(kF8GroupChannels);
    for (float& v : x) v = size * normal(rng) * std::exp(2 * normal(rng));
    float largest = 0;
    for (const float v : x) largest = std::max(largest, std::fabs(v));
    const double scale = std::exp2(std::ceil(std::log2(double{largest} / 448)));
    const std::vector<float> rounded = Rounded(x);
    for (size_t i = 0; i < x.size(); ++i) {
      INFO(x[i] << " became " << rounded[i] << ", scale " << scale);
      CHECK(std::fabs(double{rounded[i]} - x[i]) == Distance(x[i], scale));
      CHECK(RoundToBf16(rounded[i]) == rounded[i]);
    }
  }
}

TEST_CASE("the scale changes above 448 times a power of two") {
  CHECK(Rounded({448, 1.0625f}) == std::vector<float>{448, 1.0f});       // a tie, to even
  CHECK(Rounded({449, 1.125f}) == std::vector<float>{448, 1.125f});      // in steps of 32
  CHECK(Rounded({448, 0x1p-9f}) == std::vector<float>{448, 0x1p-9f});    // the smallest
  CHECK(Rounded({449, 0x1.8p-9f}) == std::vector<float>{448, 0x1p-8f});  // of twice the scale
  CHECK(Rounded({-0.875f, 0.05f}) == std::vector<float>{-0.875f, 0.05078125f});
}

TEST_CASE("values without a number make all of them none, tiny ones zeros") {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const float v : Rounded({1, bad, 2})) CHECK(std::isnan(v));
  }
  CHECK(Rounded({1e-32f, -1e-33f}) == std::vector<float>{0, 0});
  CHECK(Rounded({0, 0}) == std::vector<float>{0, 0});
}

}  // namespace
}  // namespace moert
