// Vectors of independent random numbers, each a function of a key: no state to carry, the same
// numbers in whatever order they are asked for.
#ifndef MOERT_EXAMPLES_CLI_WORKLOAD_RANDOM_VECTORS_H_
#define MOERT_EXAMPLES_CLI_WORKLOAD_RANDOM_VECTORS_H_

#include <cmath>
#include <cstdint>

namespace moert::cli {

constexpr uint64_t MixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// A key of several parts.
template <typename... Parts>
constexpr uint64_t MixKey(uint64_t first, Parts... rest) {
  uint64_t key = MixBits(first);
  ((key = MixBits(key ^ static_cast<uint64_t>(rest))), ...);
  return key;
}

/// Number i of stream `key`, nearly standard normal: a sum of four uniform 16-bit numbers, bounded
/// by 3.46. Sums of many are as normal as they need to be.
inline float RandomNormal(uint64_t key, uint64_t i) {
  const uint64_t bits = MixBits(key + i * 0xd1342543de82ef95u);
  const auto sum = static_cast<int32_t>((bits & 0xffff) + ((bits >> 16) & 0xffff) +
                                        ((bits >> 32) & 0xffff) + (bits >> 48));
  constexpr float kScale = 1.0f / 37837.2f;  // 65536 * sqrt(4 / 12)
  return static_cast<float>(sum - 131070) * kScale;
}

/// A number of a true normal distribution.
inline double RandomGaussian(uint64_t key) {
  const double u = (static_cast<double>(MixBits(key) >> 11) + 0.5) * 0x1p-53;
  const double v = static_cast<double>(MixBits(key ^ 0x5851f42d4c957f2du) >> 11) * 0x1p-53;
  return std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
}

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_WORKLOAD_RANDOM_VECTORS_H_
