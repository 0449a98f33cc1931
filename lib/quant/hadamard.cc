#include "quant/hadamard.h"

#include <cmath>
#include <cstring>

namespace moert {
namespace {

// Drawn at random, of many draws one whose transform is flat (of 128, at most 20; 11.3 is ideal): a
// constant block is spread as well as any other.
constexpr uint64_t kSigns[2] = {0xa1906544ed2ed222u, 0xc8090f0aeeb10a96u};

// Four floats, whatever the machine calls them. Blocks smaller than that go the plain way.
using F4 = float __attribute__((vector_size(16)));
constexpr int64_t kLanes = 4;

// The stages of the transform over `kBlock` floats whose partners lie 1 and 2 apart, signs first:
// the same additions in the same order as Butterflies makes one by one.
template <int64_t kBlock>
void FirstStages(const float* scaled_signs, float* v) {
  for (int64_t i = 0; i < kBlock; i += kLanes) {
    F4 x, sign;
    std::memcpy(&x, v + i, sizeof(x));
    std::memcpy(&sign, scaled_signs + i, sizeof(sign));
    x *= sign;
    const F4 a = {x[0] + x[1], x[0] - x[1], x[2] + x[3], x[2] - x[3]};
    const F4 b = {a[0] + a[2], a[1] + a[3], a[0] - a[2], a[1] - a[3]};
    std::memcpy(v + i, &b, sizeof(b));
  }
}

template <int64_t kBlock, int64_t kHalf>
void Stage(float* v) {
  for (int64_t i = 0; i < kBlock; i += 2 * kHalf) {
    for (int64_t j = i; j < i + kHalf; j += kLanes) {
      F4 a, b;
      std::memcpy(&a, v + j, sizeof(a));
      std::memcpy(&b, v + j + kHalf, sizeof(b));
      const F4 sum = a + b, difference = a - b;
      std::memcpy(v + j, &sum, sizeof(sum));
      std::memcpy(v + j + kHalf, &difference, sizeof(difference));
    }
  }
  if constexpr (2 * kHalf < kBlock) Stage<kBlock, 2 * kHalf>(v);
}

// One stage after the other, partners 1, 2, 4, ... apart.
void Butterflies(int64_t block, const float* scaled_signs, float* v) {
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

}  // namespace

float HadamardSign(int64_t i) { return (kSigns[i / 64] >> (i % 64)) & 1 ? -1.0f : 1.0f; }

void ApplyHadamard(int64_t rows, int64_t k, float* values) {
  const int64_t block = HadamardBlock(k);
  const float norm = 1.0f / std::sqrt(static_cast<float>(block));
  float scaled_signs[kMaxHadamardBlock];
  for (int64_t i = 0; i < block; ++i) scaled_signs[i] = norm * HadamardSign(i);
  for (float* v = values; v < values + rows * k; v += block) {
    if (block == kMaxHadamardBlock) {
      FirstStages<kMaxHadamardBlock>(scaled_signs, v);
      Stage<kMaxHadamardBlock, kLanes>(v);
    } else {
      Butterflies(block, scaled_signs, v);
    }
  }
}

}  // namespace moert
