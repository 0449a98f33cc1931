#include "quant/hadamard.h"

#include <cmath>
#include <cstring>

namespace moert {
namespace {

// The best of many random draws, one whose transform is flat (of 128 entries, at most 20; 11.3 is
// ideal): a constant block is spread as well as any other.
constexpr uint64_t kSigns[2] = {0xa1906544ed2ed222u, 0xc8090f0aeeb10a96u};

// Four floats in the compiler's portable vector type. Blocks smaller than that take the scalar
// path.
using F4 = float __attribute__((vector_size(16)));
constexpr int64_t kLanes = 4;

template <int a, int b, int c, int d>
F4 Shuffle(F4 x) {
#if defined(__clang__) || __GNUC__ >= 12
  return __builtin_shufflevector(x, x, a, b, c, d);
#else
  return F4{x[a], x[b], x[c], x[d]};
#endif
}

F4 Load(const float* from) {
  F4 x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}
void Store(float* to, F4 x) { std::memcpy(to, &x, sizeof(x)); }

// The first stages over `kBlock` floats, with partners 1 and 2 apart, signs first: the same
// additions in the same order as the scalar Butterflies.
template <int64_t kBlock>
void FirstStages(const float* scaled_signs, float* v) {
  for (int64_t i = 0; i < kBlock; i += kLanes) {
    const F4 x = Load(v + i) * Load(scaled_signs + i);
    // a + -b is a - b to the bit.
    const F4 a = Shuffle<0, 0, 2, 2>(x) + Shuffle<1, 1, 3, 3>(x) * F4{1, -1, 1, -1};
    const F4 b = Shuffle<0, 1, 0, 1>(a) + Shuffle<2, 3, 2, 3>(a) * F4{1, 1, -1, -1};
    Store(v + i, b);
  }
}

// Further stages, with partners kHalf and 2 kHalf apart, and so on; an odd last stage by itself.
template <int64_t kBlock, int64_t kHalf>
void Stages(float* v) {
  if constexpr (2 * kHalf == kBlock) {
    for (int64_t i = 0; i < kHalf; i += kLanes) {
      const F4 a = Load(v + i), b = Load(v + i + kHalf);
      Store(v + i, a + b);
      Store(v + i + kHalf, a - b);
    }
  } else if constexpr (kHalf < kBlock) {
    for (int64_t i = 0; i < kBlock; i += 4 * kHalf) {
      for (float* at = v + i; at < v + i + kHalf; at += kLanes) {
        const F4 a = Load(at), b = Load(at + kHalf);
        const F4 c = Load(at + 2 * kHalf), d = Load(at + 3 * kHalf);
        const F4 sum_ab = a + b, sum_cd = c + d, a_b = a - b, c_d = c - d;
        Store(at, sum_ab + sum_cd);
        Store(at + kHalf, a_b + c_d);
        Store(at + 2 * kHalf, sum_ab - sum_cd);
        Store(at + 3 * kHalf, a_b - c_d);
      }
    }
    Stages<kBlock, 4 * kHalf>(v);
  }
}

// Stage after stage, with partners 1, 2, 4, ... apart.
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
      Stages<kMaxHadamardBlock, kLanes>(v);
    } else {
      Butterflies(block, scaled_signs, v);
    }
  }
}

}  // namespace moert
