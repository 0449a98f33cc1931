// Scales of activations in e4m3, one for every 128 channels: the smallest power of two that brings
// the largest magnitude to at most 448 (DeepSeek's ue8m0). A value is then e4m3 times a power of
// two, which bf16 holds. One code for host and device.
#ifndef MOERT_LIB_QUANT_F8_GROUP_H_
#define MOERT_LIB_QUANT_F8_GROUP_H_

#include <cstdint>

#include "rules/host_device.h"

namespace moert {

inline constexpr int kF8GroupChannels = 128;
/// Exponents of groups with an infinity or NaN, and of groups too small to matter.
inline constexpr int kF8NoNumber = 255;
inline constexpr int kF8Zero = 0;

/// The biased exponent of the scale: 2^(exponent - 127). magnitude: the bits of the largest |x| as
/// fp32, infinite or NaN if any x is.
MOERT_HOST_DEVICE constexpr int F8GroupExponent(uint32_t magnitude) {
  if (magnitude >= 0x7f800000u) return kF8NoNumber;
  constexpr uint32_t kAboveLimit = 0x1fffff;  // carries where the mantissa is above that of 448
  constexpr int kLimitExponent = 8, kSmallest = 20;
  const int exponent = static_cast<int>((magnitude + kAboveLimit) >> 23) - kLimitExponent;
  return exponent < kSmallest ? kF8Zero : exponent;
}
/// The bits of the scale and of its inverse, as fp32. kF8Zero: both are 0. kF8NoNumber: the scale
/// is NaN and the inverse 0.
MOERT_HOST_DEVICE constexpr uint32_t F8GroupScale(int exponent) {
  return exponent == kF8NoNumber ? 0x7fffffffu : static_cast<uint32_t>(exponent) << 23;
}
MOERT_HOST_DEVICE constexpr uint32_t F8GroupInverse(int exponent) {
  return exponent == kF8Zero || exponent == kF8NoNumber
             ? 0
             : static_cast<uint32_t>(254 - exponent) << 23;
}

/// The nearest e4m3 value, ties to even; |x| is at most 448.
float NearestF8(float x);
/// Rounds up to kF8GroupChannels values to e4m3 times the scale that they share.
void RoundF8Group(const float* x, int64_t count, float* rounded);
/// Rounds a row of k channels in place.
void RoundF8Row(int64_t k, float* x);

}  // namespace moert

#endif  // MOERT_LIB_QUANT_F8_GROUP_H_
