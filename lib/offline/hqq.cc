#include "offline/hqq.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/bf16.h"

namespace moert {
namespace {

// |x| < 2^22, to nearest even; the compiler makes a call of nearbyint.
float RoundSmall(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
  return (x + kMagic) - kMagic;
}

/// The proximal operator of |x|^p / beta: what of a residual counts as an outlier.
class Shrink {
 public:
  Shrink(double p, double beta)
      : p_(p), beta_(beta), none_below_(static_cast<float>(std::pow(beta, 1 / (p - 2)))) {}
  float operator()(float x) const {
    const float magnitude = std::fabs(x);
    if (magnitude <= none_below_) return 0;
    const double kept = magnitude - std::pow(double{magnitude}, p_ - 1) / beta_;
    return kept > 0 ? std::copysign(static_cast<float>(kept), x) : 0.0f;
  }

 private:
  const double p_, beta_;
  const float none_below_;
};

struct Fit {
  GroupScale group;
  double error = std::numeric_limits<double>::infinity();
};

double SumOfPowers(const Scheme& scheme, const GroupScale& g, absl::Span<const float> values,
                   double power) {
  const float inverse = 1.0f / g.scale;
  const float middle = static_cast<float>(1 << (scheme.weight_bits - 1));
  const float zero = scheme.symmetric ? middle : g.offset * inverse;
  const float top = static_cast<float>((1 << scheme.weight_bits) - 1);
  double sum = 0;
  for (const float v : values) {
    const float code = RoundSmall(std::clamp(v * inverse + zero, 0.0f, top));
    const float back = scheme.symmetric ? g.scale * (code - middle) : g.scale * code - g.offset;
    const double e = std::fabs(back - v);
    sum += power == 2 ? e * e : power == 1 ? e : std::pow(e, power);
  }
  return sum;
}

/// Keeps the better of *best and (scale, offset) as they will be stored.
void Consider(const Scheme& scheme, float scale, float offset, absl::Span<const float> values,
              double select, Fit* best) {
  const GroupScale g{RoundToBf16(scale), RoundToBf16(offset)};
  if (!(g.scale > 0) || !std::isfinite(g.scale) || !std::isfinite(g.offset)) return;
  const double error = SumOfPowers(scheme, g, values, select);
  if (error < best->error) *best = {g, error};
}

/// The published iteration for one scale: the zero of the least mean |error| on the way.
float BestZero(float scale, float zero, float top, absl::Span<const float> values,
               const HqqOptions& options) {
  const float inverse = 1 / scale;
  double beta = options.beta;
  double least = std::numeric_limits<double>::infinity();
  float best = zero;
  for (int i = 0; i < options.iterations; ++i) {
    const Shrink shrink(options.lp_norm, beta);
    double absolute = 0, mean = 0;
    for (const float v : values) {
      const float code = RoundSmall(std::clamp(v * inverse + zero, 0.0f, top));
      const float residual = v - (code - zero) * scale;
      absolute += std::fabs(residual);
      mean += code - (v - shrink(residual)) * inverse;
    }
    if (!(absolute < least)) break;
    least = absolute;
    best = zero;
    zero = static_cast<float>(mean / static_cast<double>(values.size()));
    beta *= options.kappa;
  }
  return best;
}

/// Symmetric: the scale is updated in closed form instead.
float BestScale(float scale, float middle, float top, absl::Span<const float> values,
                const HqqOptions& options) {
  double beta = options.beta;
  double least = std::numeric_limits<double>::infinity();
  float best = scale;
  for (int i = 0; i < options.iterations && scale > 0; ++i) {
    const Shrink shrink(options.lp_norm, beta);
    const float inverse = 1 / scale;
    double absolute = 0, dot = 0, squares = 0;
    for (const float v : values) {
      const float code = RoundSmall(std::clamp(v * inverse + middle, 0.0f, top)) - middle;
      const float residual = v - code * scale;
      absolute += std::fabs(residual);
      dot += double{code} * (v - shrink(residual));
      squares += double{code} * code;
    }
    if (!(absolute < least)) break;
    least = absolute;
    best = scale;
    if (!(squares > 0)) break;
    scale = static_cast<float>(dot / squares);
    beta *= options.kappa;
  }
  return best;
}

}  // namespace

GroupScale FitHqq(const Scheme& scheme, absl::Span<const float> values, const HqqOptions& options) {
  if (scheme.fp8 || scheme.fp4 || scheme.zero_points || scheme.scales != ScaleType::kBF16) {
    return FitGroup(scheme, values, RtnOptions());
  }
  const auto [low_at, high_at] = std::minmax_element(values.begin(), values.end());
  const float low = *low_at, high = *high_at;
  const float top = static_cast<float>((1 << scheme.weight_bits) - 1);
  const float middle = static_cast<float>(1 << (scheme.weight_bits - 1));
  // A constant group: a zero scale cannot hold it, and the iteration would divide by it.
  if (!(high > low)) return FitGroup(scheme, values, RtnOptions());
  Fit best;
  const int scales = std::max(1, options.scales);
  for (int i = 0; i < scales; ++i) {
    const float share =
        scales == 1 ? 1.0f
                    : static_cast<float>(1 - (1 - options.smallest) * i / double(scales - 1));
    if (scheme.symmetric) {
      const float start = std::max(std::fabs(low), std::fabs(high)) / (middle - 1) * share;
      Consider(scheme, BestScale(start, middle, top, values, options), 0, values, options.select,
               &best);
    } else {
      // In steps of the scale that is stored, so that the zero fits it.
      const float scale = RoundToBf16((high - low) * share / top);
      if (!(scale > 0)) continue;
      const float zero = BestZero(scale, -low * share / scale, top, values, options);
      Consider(scheme, scale, zero * scale, values, options.select, &best);
    }
  }
  return std::isfinite(best.error) ? best.group : FitGroup(scheme, values, RtnOptions());
}

QuantizedMatrix QuantizeHqq(const MatrixLayout& layout, absl::Span<const float> weights,
                            const HqqOptions& options) {
  if (layout.scheme.scales == ScaleType::kE4M3) return QuantizeRtn(layout, weights);
  return QuantizeGroups(layout, weights, [&](absl::Span<const float> values) {
    return FitHqq(layout.scheme, values, options);
  });
}

}  // namespace moert
