#include "offline/rtn_candidates.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/bf16.h"

namespace moert {
namespace {

constexpr int kPowerIntervals = 1024;

std::vector<float> MakePowers(double norm) {
  std::vector<float> table(kPowerIntervals + 1);
  for (int i = 0; i <= kPowerIntervals; ++i) {
    table[i] = static_cast<float>(std::pow(0.5 * i / kPowerIntervals, norm));
  }
  return table;
}

/// The least power of two that is not below x > 0, up to the rounding of log2.
float PowerOfTwoFrom(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), mantissa = bits & 0x7fffffu;
  const uint32_t exponent = bits >> 23;
  // Near a power of two log2 may round to its exponent.
  const bool far = mantissa == 0 || (mantissa > 0x1000u && mantissa < 0x7ff000u);
  if (!far || exponent == 0 || exponent >= 250) return std::exp2(std::ceil(std::log2(x)));
  return std::bit_cast<float>((exponent + (mantissa != 0 ? 1u : 0u)) << 23);
}

/// The sum of |error / scale|^norm over a group, for integer codes; if it exceeds `limit`, any
/// value above `limit`.
double ErrorInSteps(const Scheme& scheme, const GroupScale& g, absl::Span<const float> values,
                    const PowerTable& power, double limit) {
  const float inverse = 1.0f / g.scale;
  const float zero = scheme.symmetric     ? static_cast<float>(1 << (scheme.weight_bits - 1))
                     : scheme.zero_points ? g.offset
                                          : g.offset * inverse;
  const float top = static_cast<float>((1 << scheme.weight_bits) - 1);
  constexpr size_t kBetweenChecks = 16;
  double sum = 0;
  for (size_t begin = 0; begin < values.size() && sum <= limit; begin += kBetweenChecks) {
    float part = 0;
    for (const float v : values.subspan(begin, kBetweenChecks)) {
      const float u = v * inverse + zero;
      const float code = NearestSmall(std::clamp(u, 0.0f, top));
      part += power(std::fabs(u - code));
    }
    sum += part;
  }
  return sum;
}

double ErrorOfFloats(const Scheme& scheme, const GroupScale& g, absl::Span<const float> values,
                     double norm) {
  double sum = 0;
  for (const float v : values) {
    sum += std::pow(std::fabs(RestoreCode(scheme, g, RoundToCode(scheme, g, v)) - v), norm);
  }
  return sum;
}

}  // namespace

float RoundScale(const Scheme& scheme, float scale) {
  return DecodeScale(scheme.scales, EncodeScale(scheme.scales, scale));
}

GroupScale Spanning(const Scheme& scheme, float low, float high) {
  GroupScale g;
  const float most = std::max(std::fabs(low), std::fabs(high));
  if (scheme.fp8 || scheme.fp4) {
    // Powers of two are rounded up: what is lower follows from smaller shares.
    const float scale = most / LargestFloat(scheme);
    g.scale = RoundScale(scheme, scheme.scales == ScaleType::kE8M0 ? PowerOfTwoFrom(scale) : scale);
  } else if (scheme.zero_points) {
    const float steps = static_cast<float>((1 << scheme.weight_bits) - 1);
    g.scale = RoundScale(scheme, (high - low) / steps);
    if (g.scale > 0) g.offset = std::clamp(std::nearbyint(-low / g.scale), 0.0f, steps);
  } else if (scheme.symmetric) {
    // Codes 0 .. 2^b - 1 around 2^(b-1): the negative side reaches one step further.
    const float steps = static_cast<float>((1 << (scheme.weight_bits - 1)) - 1);
    g.scale = RoundScale(scheme, most / steps);
  } else {
    const float steps = static_cast<float>((1 << scheme.weight_bits) - 1);
    g.scale = RoundToBf16((high - low) / steps);
    g.offset = RoundToBf16(-low);
  }
  return g;
}

float RangeShare(const RtnOptions& options, int candidate, int grid) {
  return static_cast<float>(1 - (1 - options.smallest) * candidate / static_cast<double>(grid));
}

PowerTable::PowerTable(double norm) : norm_(norm) {
  static const std::vector<float>* const usual =
      new std::vector<float>(MakePowers(RtnOptions{}.norm));
  if (norm == RtnOptions{}.norm) {
    table_ = usual->data();
  } else {
    own_ = MakePowers(norm);
    table_ = own_.data();
  }
}

float PowerTable::operator()(float t) const {
  const float at = t * (2 * kPowerIntervals);
  if (!(at < kPowerIntervals)) return static_cast<float>(std::pow(double{t}, norm_));
  const int i = static_cast<int>(at);
  return table_[i] + (table_[i + 1] - table_[i]) * (at - static_cast<float>(i));
}

double GroupError(const Scheme& scheme, const GroupScale& g, absl::Span<const float> values,
                  const RtnOptions& options, const PowerTable& power, double limit) {
  if (scheme.fp8 || scheme.fp4) return ErrorOfFloats(scheme, g, values, options.norm);
  const double unit = std::pow(double{g.scale}, options.norm);
  return unit * ErrorInSteps(scheme, g, values, power, limit / unit);
}

}  // namespace moert
