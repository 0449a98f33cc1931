#include "offline/rtn.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/bf16.h"

namespace moert {
namespace {

constexpr float kF8Max = 448;
constexpr float kF4Max = 6;

uint8_t NearestF8(float value) {
  // Positive codes ascend with their values: a binary search over 0x00..0x7e, then the nearer
  // neighbour.
  const float magnitude = std::min(std::fabs(value), kF8Max);
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

float RoundScale(const Scheme& scheme, float scale) {
  return DecodeScale(scheme.scales, EncodeScale(scheme.scales, scale));
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

/// The scale that spans [low, high], as it will be stored.
GroupScale Spanning(const Scheme& scheme, float low, float high) {
  GroupScale g;
  const float most = std::max(std::fabs(low), std::fabs(high));
  if (scheme.fp4) {
    // Powers of two are rounded up: what is lower follows from smaller shares.
    const float scale = most / kF4Max;
    g.scale = scheme.scales == ScaleType::kE8M0
                  ? RoundScale(scheme, std::exp2(std::ceil(std::log2(scale))))
                  : RoundScale(scheme, scale);
  } else if (scheme.fp8) {
    g.scale = RoundScale(scheme, most / kF8Max);
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

/// t^norm, from a table where t is a rounding error in steps, at most 1/2: the search below spends
/// nearly all of its time on it.
class PowerTable {
 public:
  explicit PowerTable(double norm) : norm_(norm) {
    static const std::vector<float>* const usual = new std::vector<float>(Make(RtnOptions{}.norm));
    if (norm == RtnOptions{}.norm) {
      table_ = usual->data();
    } else {
      own_ = Make(norm);
      table_ = own_.data();
    }
  }
  float operator()(float t) const {
    const float at = t * (2 * kIntervals);
    if (!(at < kIntervals)) return static_cast<float>(std::pow(double{t}, norm_));
    const int i = static_cast<int>(at);
    return table_[i] + (table_[i + 1] - table_[i]) * (at - static_cast<float>(i));
  }

 private:
  static constexpr int kIntervals = 1024;
  static std::vector<float> Make(double norm) {
    std::vector<float> table(kIntervals + 1);
    for (int i = 0; i <= kIntervals; ++i) {
      table[static_cast<size_t>(i)] = static_cast<float>(std::pow(0.5 * i / kIntervals, norm));
    }
    return table;
  }
  const double norm_;
  std::vector<float> own_;
  const float* table_;
};

/// |x| < 2^22, to nearest even; the compiler makes a call of nearbyint.
float RoundSmall(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
  return (x + kMagic) - kMagic;
}

/// Sum of |error / scale|^norm over a group, integer codes; anything above `limit` if it is above
/// that.
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
      const float code = RoundSmall(std::clamp(u, 0.0f, top));
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

float RestoreCode(const Scheme& scheme, const GroupScale& g, uint8_t code) {
  if (scheme.fp8) return g.scale * F8E4M3ToF32(code);
  if (scheme.fp4) return g.scale * F4E2M1ToF32(code);
  const float u = static_cast<float>(code);
  if (scheme.zero_points) return g.scale * (u - g.offset);
  return scheme.symmetric ? g.scale * (u - static_cast<float>(1 << (scheme.weight_bits - 1)))
                          : g.scale * u - g.offset;
}

uint8_t RoundToCode(const Scheme& scheme, const GroupScale& g, float weight) {
  if (scheme.fp8) return g.scale > 0 ? NearestF8(weight / g.scale) : 0;
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

GroupScale FitGroup(const Scheme& scheme, absl::Span<const float> values,
                    const RtnOptions& options) {
  float low = 0, high = 0;
  for (const float v : values) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
  if (low == 0 && high == 0) return {RoundScale(scheme, 0), 0};
  GroupScale best = Spanning(scheme, low, high), tried;
  double best_error = std::numeric_limits<double>::infinity();
  const PowerTable power(options.norm);
  const int grid = std::max(1, options.grid);
  for (int i = 0; i < grid; ++i) {
    const float share =
        static_cast<float>(1 - (1 - options.smallest) * i / static_cast<double>(grid));
    const GroupScale g = Spanning(scheme, low * share, high * share);
    if (!(g.scale > 0) || (g.scale == tried.scale && g.offset == tried.offset)) continue;
    tried = g;
    double error;
    if (scheme.fp8 || scheme.fp4) {
      error = ErrorOfFloats(scheme, g, values, options.norm);
    } else {
      const double unit = std::pow(double{g.scale}, options.norm);
      error = unit * ErrorInSteps(scheme, g, values, power, best_error / unit);
    }
    if (error < best_error) {
      best_error = error;
      best = g;
    }
  }
  return best;
}

QuantizedMatrix QuantizeGroups(const MatrixLayout& layout, absl::Span<const float> weights,
                               absl::FunctionRef<GroupScale(absl::Span<const float>)> fit) {
  QuantizedMatrix q = MakeQuantizedMatrix(layout);
  for (int64_t r = 0; r < q.rows; ++r) {
    for (int64_t n = 0; n < q.groups(); ++n) {
      const int64_t begin = r * q.k + n * q.group;
      const int64_t count = std::min(q.group, q.k - n * q.group);
      const GroupScale g = fit(weights.subspan(begin, count));
      q.scales[r * q.groups() + n] = g.scale;
      if (!q.offsets.empty()) q.offsets[r * q.groups() + n] = g.offset;
      for (int64_t i = begin; i < begin + count; ++i) {
        q.codes[i] = RoundToCode(layout.scheme, g, weights[i]);
      }
    }
  }
  return q;
}

QuantizedMatrix QuantizeRtn(const MatrixLayout& layout, absl::Span<const float> weights,
                            const RtnOptions& options) {
  if (layout.scheme.scales == ScaleType::kE4M3) {
    // The largest group's scale takes the largest e4m3 value.
    float most = 0;
    for (const float w : weights) most = std::max(most, std::fabs(w));
    const float matrix = most > 0 ? most / (kF4Max * kF8Max) : 1;
    std::vector<float> scaled(weights.begin(), weights.end());
    for (float& w : scaled) w /= matrix;
    QuantizedMatrix q = QuantizeGroups(layout, scaled, [&](absl::Span<const float> values) {
      return FitGroup(layout.scheme, values, options);
    });
    q.matrix_scale = matrix;
    return q;
  }
  return QuantizeGroups(layout, weights, [&](absl::Span<const float> values) {
    return FitGroup(layout.scheme, values, options);
  });
}

}  // namespace moert
