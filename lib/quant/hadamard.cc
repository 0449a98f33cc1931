#include "quant/hadamard.h"

#include <cmath>

namespace moert {
namespace {

// Drawn at random, of many draws one whose transform is flat (of 128, at most 20; 11.3 is ideal): a
// constant block is spread as well as any other.
constexpr uint64_t kSigns[2] = {0xa1906544ed2ed222u, 0xc8090f0aeeb10a96u};

}  // namespace

float HadamardSign(int64_t i) { return (kSigns[i / 64] >> (i % 64)) & 1 ? -1.0f : 1.0f; }

void ApplyHadamard(int64_t rows, int64_t k, float* values) {
  const int64_t block = HadamardBlock(k);
  const float norm = 1.0f / std::sqrt(static_cast<float>(block));
  float scaled_signs[kMaxHadamardBlock];
  for (int64_t i = 0; i < block; ++i) scaled_signs[i] = norm * HadamardSign(i);
  for (float* v = values; v < values + rows * k; v += block) {
    for (int64_t i = 0; i < block; ++i) v[i] *= scaled_signs[i];
    for (int64_t half = 1; half < block; half *= 2) {
      for (int64_t i = 0; i < block; i += 2 * half) {
        for (int64_t j = i; j < i + half; ++j) {
          const float a = v[j], b = v[j + half];
          v[j] = a + b;
          v[j + half] = a - b;
        }
      }
    }
  }
}

}  // namespace moert
