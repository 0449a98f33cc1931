#include "route/gate_dots.h"

#include <cstring>

namespace moert {
namespace {

constexpr int kLanes = 16;
constexpr int kVector = 8;  // floats
typedef float Vector __attribute__((vector_size(kVector * sizeof(float))));
typedef float Loose
    __attribute__((vector_size(kVector * sizeof(float)), aligned(sizeof(float)), may_alias));

// Products and sums are rounded separately; no variant uses fused multiply-add.
template <int kTokens>
[[gnu::always_inline]] inline void Dots(const float* x, const float* gate, int64_t n, float* out,
                                        int64_t out_stride) {
  constexpr int kVectors = kLanes / kVector;
  Vector sums[kTokens][kVectors] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = i + v * kVector;
      const Vector weights = *reinterpret_cast<const Loose*>(gate + at);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        sums[t][v] += *reinterpret_cast<const Loose*>(x + t * n + at) * weights;
      }
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    float lanes[kLanes];
    std::memcpy(lanes, sums[t], sizeof(lanes));
    float tail = 0;
    for (int64_t k = i; k < n; ++k) tail += x[t * n + k] * gate[k];
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
    }
    out[t * out_stride] = lanes[0] + tail;
  }
}

[[gnu::always_inline]] inline void AllDots(const float* x, int64_t tokens, const float* gate,
                                           int64_t n, float* out, int64_t out_stride) {
  constexpr int kTogether = 4;
  int64_t t = 0;
  for (; t + kTogether <= tokens; t += kTogether) {
    Dots<kTogether>(x + t * n, gate, n, out + t * out_stride, out_stride);
  }
  for (; t < tokens; ++t) Dots<1>(x + t * n, gate, n, out + t * out_stride, out_stride);
}

using Function = decltype(&PlainGateDots);

#if defined(__x86_64__)
// The target avx2 does not enable FMA.
[[gnu::target("avx2")]] void Avx2GateDots(const float* x, int64_t tokens, const float* gate,
                                          int64_t n, float* out, int64_t out_stride) {
  AllDots(x, tokens, gate, n, out, out_stride);
}
Function BestGateDots() { return __builtin_cpu_supports("avx2") ? Avx2GateDots : PlainGateDots; }
#else
Function BestGateDots() { return PlainGateDots; }
#endif

}  // namespace

void PlainGateDots(const float* x, int64_t tokens, const float* gate, int64_t n, float* out,
                   int64_t out_stride) {
  AllDots(x, tokens, gate, n, out, out_stride);
}

void GateDots(const float* x, int64_t tokens, const float* gate, int64_t n, float* out,
              int64_t out_stride) {
  static const Function function = BestGateDots();
  function(x, tokens, gate, n, out, out_stride);
}

}  // namespace moert
