#include <algorithm>
#include <cmath>

#include "base/bf16.h"
#include "offline/rtn.h"
#include "offline/rtn_lanes.h"

namespace moert {
namespace {

uint8_t NearestF8Code(float value) {
  // Positive codes ascend with their values: a binary search over 0x00..0x7e, then the nearer
  // neighbour.
  const float magnitude = std::min(std::fabs(value), 448.0f);
  int low = 0, high = 0x7e;
  while (low < high) {
    const int mid = (low + high) / 2;
    if (F8E4M3ToF32(static_cast<uint8_t>(mid)) < magnitude) {
      low = mid + 1;
    } else {
      high = mid;
    }
  }
  int code = low;
  if (code > 0) {
    const float above = F8E4M3ToF32(static_cast<uint8_t>(code)) - magnitude;
    const float below = magnitude - F8E4M3ToF32(static_cast<uint8_t>(code - 1));
    if (below < above || (below == above && code % 2 == 1)) --code;
  }
  return static_cast<uint8_t>(code | (std::signbit(value) && code != 0 ? 0x80 : 0));
}

uint8_t NearestF4(float value) {
  uint8_t best = 0;
  for (uint8_t code = 1; code < 8; ++code) {
    const float step = std::fabs(F4E2M1ToF32(code) - std::fabs(value));
    const float held = std::fabs(F4E2M1ToF32(best) - std::fabs(value));
    if (step < held || (step == held && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(best | (std::signbit(value) && best != 0 ? 8 : 0));
}

}  // namespace

bool HasPlainCodes(const Scheme& scheme) {
  return !scheme.fp8 && !scheme.fp4 && !scheme.zero_points && scheme.scales == ScaleType::kBF16;
}

float RestoreCode(const Scheme& scheme, const GroupScale& g, uint8_t code) {
  if (scheme.fp8) return g.scale * F8E4M3ToF32(code);
  if (scheme.fp4) return g.scale * F4E2M1ToF32(code);
  const float u = static_cast<float>(code);
  if (scheme.zero_points) return g.scale * (u - g.offset);
  return scheme.symmetric ? g.scale * (u - static_cast<float>(1 << (scheme.weight_bits - 1)))
                          : g.scale * u - g.offset;
}

uint8_t RoundToCode(const Scheme& scheme, const GroupScale& g, float weight) {
  if (scheme.fp8) return g.scale > 0 ? NearestF8Code(weight / g.scale) : 0;
  if (scheme.fp4) return g.scale > 0 ? NearestF4(weight / g.scale) : 0;
  const float middle = static_cast<float>(1 << (scheme.weight_bits - 1));
  const float top = static_cast<float>((1 << scheme.weight_bits) - 1);
  const float zero = scheme.symmetric ? middle : scheme.zero_points ? g.offset : 0;
  if (!(g.scale > 0)) return static_cast<uint8_t>(zero);
  if (scheme.zero_points) {
    return static_cast<uint8_t>(std::clamp(std::nearbyint(weight / g.scale + zero), 0.0f, top));
  }
  const float u = scheme.symmetric ? weight / g.scale + middle : (weight + g.offset) / g.scale;
  return static_cast<uint8_t>(std::clamp(std::nearbyint(u), 0.0f, top));
}

float LargestFloat(const Scheme& scheme) { return scheme.fp8 ? 448.0f : 6.0f; }

void RoundGroup(const Scheme& scheme, const GroupScale& g, absl::Span<const float> weights,
                uint8_t* codes, const RtnLanes* lanes) {
  const int count = static_cast<int>(weights.size());
  if (lanes == nullptr || !(g.scale > 0)) {
    for (size_t i = 0; i < weights.size(); ++i) codes[i] = RoundToCode(scheme, g, weights[i]);
  } else if (scheme.fp8 || scheme.fp4) {
    lanes->float_codes(scheme.fp8, weights.data(), count, g.scale, codes);
  } else {
    const bool before = !scheme.symmetric && !scheme.zero_points;  // the offset is added to weights
    const float zero = scheme.symmetric     ? static_cast<float>(1 << (scheme.weight_bits - 1))
                       : scheme.zero_points ? g.offset
                                            : 0;
    lanes->codes(weights.data(), count, g.scale, before ? g.offset : 0, zero,
                 static_cast<float>((1 << scheme.weight_bits) - 1), codes);
  }
}

}  // namespace moert
