#include "offline/activation_rounding.h"

#include <algorithm>
#include <cmath>

#include "quant/f8_group.h"

namespace moert::offline {
namespace {

constexpr int64_t kActivationGroup = 128;
constexpr float kLargestE4m3 = 448;

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
        v[i] = scale * (scheme.fp8 ? NearestF8(exact) : std::nearbyint(exact));
      }
    }
  }
}

}  // namespace moert::offline
