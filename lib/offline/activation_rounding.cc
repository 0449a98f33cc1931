#include "offline/activation_rounding.h"

#include <algorithm>
#include <cmath>

namespace moert::offline {
namespace {

constexpr int64_t kActivationGroup = 128;
constexpr float kLargestE4m3 = 448;

// The distance of neighbours in e4m3 at a magnitude.
float StepE4m3(float magnitude) {
  return std::ldexp(1.0f, (magnitude < 0x1p-6f ? -6 : std::ilogb(magnitude)) - 3);
}

}  // namespace

void RoundActivations(const Scheme& scheme, int64_t k, Floats* x) {
  if (!RoundsActivations(scheme)) return;
  const int64_t group = scheme.group > 0 && !scheme.fp8 ? std::min(kActivationGroup, k) : k;
  const float limit = scheme.fp8 ? kLargestE4m3 : scheme.act_bits == 8 ? 127 : 7;
  const int64_t rows = static_cast<int64_t>(x->size()) / k;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t begin = 0; begin < k; begin += group) {
      float* const v = x->data() + row * k + begin;
      const int64_t count = std::min(group, k - begin);
      float maximum = 0;
      for (int64_t i = 0; i < count; ++i) maximum = std::max(maximum, std::fabs(v[i]));
      const float scale = maximum / limit;
      const float inverse = maximum > 1e-30f ? limit / maximum : 0;
      for (int64_t i = 0; i < count; ++i) {
        const float exact = std::clamp(v[i] * inverse, -limit, limit);
        const float step = scheme.fp8 ? StepE4m3(std::fabs(exact)) : 1.0f;
        v[i] = scale * (std::nearbyint(exact / step) * step);
      }
    }
  }
}

}  // namespace moert::offline
