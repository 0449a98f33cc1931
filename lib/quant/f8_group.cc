#include "quant/f8_group.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace moert {

float NearestF8(float x) {
  const float magnitude = std::fabs(x);
  // The spacing of e4m3 values: three mantissa bits, and a constant 2^-9 below 2^-6.
  const int exponent = magnitude < 0x1p-6f ? -6 : std::ilogb(magnitude);
  const float step = std::ldexp(1.0f, exponent - 3);
  return std::copysign(std::nearbyint(magnitude / step) * step, x);
}

void RoundF8Group(const float* x, int64_t count, float* rounded) {
  constexpr uint32_t kMagnitude = 0x7fffffffu;
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & kMagnitude);
  }
  const int exponent = F8GroupExponent(largest);
  const auto scale = std::bit_cast<float>(F8GroupScale(exponent));
  const auto inverse = std::bit_cast<float>(F8GroupInverse(exponent));
  for (int64_t i = 0; i < count; ++i) {
    rounded[i] = (inverse == 0 ? 0.0f : NearestF8(x[i] * inverse)) * scale;
  }
}

void RoundF8Row(int64_t k, float* x) {
  for (int64_t at = 0; at < k; at += kF8GroupChannels) {
    RoundF8Group(x + at, std::min<int64_t>(k - at, kF8GroupChannels), x + at);
  }
}

}  // namespace moert
