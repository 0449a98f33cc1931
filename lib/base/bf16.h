// Conversions between float and the 16- and 8-bit floating-point formats of checkpoints and
// records. Scalar and portable; kernels have their own vector forms and are tested against these.
#ifndef MOERT_LIB_BASE_BF16_H_
#define MOERT_LIB_BASE_BF16_H_

#include <bit>
#include <cstdint>
#include <cstring>

namespace moert {

constexpr float Bf16ToF32(uint16_t v) { return std::bit_cast<float>(uint32_t{v} << 16); }

/// Round to nearest, ties to even. A NaN stays a (quiet) NaN of the same sign.
constexpr uint16_t F32ToBf16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// Converts `count` values, in blocks of a fixed size that compilers vectorize at any optimization.
inline void Bf16ToF32(const uint16_t* from, int64_t count, float* to) {
  constexpr int64_t kBlock = 16;
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    uint32_t bits[kBlock];
    for (int64_t j = 0; j < kBlock; ++j) bits[j] = uint32_t{from[i + j]} << 16;
    std::memcpy(to + i, bits, sizeof(bits));
  }
  for (; i < count; ++i) to[i] = Bf16ToF32(from[i]);
}

/// The value of `f` after rounding to bf16.
constexpr float RoundToBf16(float f) { return Bf16ToF32(F32ToBf16(f)); }

/// Rounds kCount values to bf16.
template <int kCount>
inline void RoundToBf16(const float* from, float* to) {
  float rounded[kCount];
  for (int i = 0; i < kCount; ++i) rounded[i] = RoundToBf16(from[i]);
  std::memcpy(to, rounded, sizeof(rounded));
}

/// IEEE binary16, subnormals included.
constexpr float F16ToF32(uint16_t v) {
  const uint32_t sign = uint32_t{v & 0x8000u} << 16;
  const uint32_t exponent = (v >> 10) & 0x1fu;
  const uint32_t mantissa = v & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

/// IEEE binary16, round to nearest even; overflow gives infinity.
constexpr uint16_t F32ToF16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Adding 0.5 aligns the result's last bit with that of a binary16 subnormal (2^-24), so the
    // addition itself rounds to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude - 0x38000000u + 0x0fffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

/// FP8 E4M3 in the "FN" variant that checkpoints use: no infinities, 0x7f and 0xff are NaN.
constexpr float F8E4M3ToF32(uint8_t v) {
  const uint32_t sign = uint32_t{v & 0x80u} << 24;
  const uint32_t exponent = (v >> 3) & 0xfu;
  const uint32_t mantissa = v & 0x7u;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 120) << 23) | (mantissa << 20));
}

}  // namespace moert

#endif  // MOERT_LIB_BASE_BF16_H_
