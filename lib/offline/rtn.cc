#include "offline/rtn.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/bf16.h"
#include "offline/rtn_lanes.h"

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

bool HasRtnLanes() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

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

namespace {

/// The exact error of a candidate; above `limit`, anything that is above it.
double GroupError(const Scheme& scheme, const GroupScale& g, absl::Span<const float> values,
                  const RtnOptions& options, const PowerTable& power, double limit) {
  if (scheme.fp8 || scheme.fp4) return ErrorOfFloats(scheme, g, values, options.norm);
  const double unit = std::pow(double{g.scale}, options.norm);
  return unit * ErrorInSteps(scheme, g, values, power, limit / unit);
}

/// The candidate ranges' shares of the full one, from 1 down.
float ShareOf(const RtnOptions& options, int candidate, int grid) {
  return static_cast<float>(1 - (1 - options.smallest) * candidate / static_cast<double>(grid));
}

/// FitGroup by vectors: all candidates' errors approximately, then exactly those whose bounds allow
/// them to be the least. The same candidate wins as in FitGroup, whose order and sums the exact
/// errors keep.
class LaneFit {
 public:
  LaneFit(const Scheme& scheme, absl::Span<const float> values, const RtnOptions& options)
      : scheme_(scheme), values_(values), options_(options) {}

  static bool Can(const Scheme& scheme, absl::Span<const float> values, const RtnOptions& options) {
    static const bool lanes = HasRtnLanes();
    return lanes && HasPlainCodes(scheme) && options.norm == RtnOptions{}.norm &&
           options.grid >= 1 && options.grid <= kMaxGrid && values.size() >= 16 &&
           values.size() <= 4096;
  }

  /// False: the values are out of the range that the bounds hold for, and nothing is said.
  bool Run(float low, float high, GroupScale* best) {
    for (int begin = 0; begin < options_.grid; begin += kChunk) {
      const int end = std::min(options_.grid, begin + kChunk);
      if (!Approximate(low, high, begin, end)) return false;
      tried_ = end;
      if (NoneBetterFrom(low, high, end - 1)) break;
    }
    return Choose(best);
  }

 private:
  static constexpr int kMaxGrid = 128, kChunk = 16;
  // What the approximate sums may be off: the functions' own error, the table's, and rounding.
  static constexpr float kRelative = 4e-5f, kPerValue = 4e-7f;

  bool Approximate(float low, float high, int begin, int end) {
    float inverse[kChunk], zero[kChunk], scale[kChunk], sum[kChunk], unit[kChunk];
    const int n = end - begin;
    for (int i = 0; i < n; ++i) {
      const float share = ShareOf(options_, begin + i, options_.grid);
      const GroupScale g = Spanning(scheme_, low * share, high * share);
      if (!(g.scale > 3e-7f && g.scale < 500)) return false;
      groups_[begin + i] = g;
      scale[i] = g.scale;
      inverse[i] = 1.0f / g.scale;
      zero[i] = scheme_.symmetric ? static_cast<float>(1 << (scheme_.weight_bits - 1))
                                  : g.offset * inverse[i];
    }
    const float top = static_cast<float>((1 << scheme_.weight_bits) - 1);
    const int count = static_cast<int>(values_.size());
    RtnErrorSumsAvx512(values_.data(), count, top, inverse, zero, n, sum);
    RtnPowersAvx512(scale, n, unit);
    for (int i = 0; i < n; ++i) {
      const float slack = sum[i] * kRelative + kPerValue * static_cast<float>(count);
      least_[begin + i] = unit[i] * (sum[i] - slack);
      bound_ = std::min(bound_, unit[i] * (sum[i] + slack));
    }
    return true;
  }

  /// Whether what the range of a candidate cuts off its extremes alone is more than the best error:
  /// all later candidates cut off more. Ranges are rounded, hence the slack.
  bool NoneBetterFrom(float low, float high, int candidate) const {
    const GroupScale& g = groups_[candidate];
    const float top = static_cast<float>((1 << scheme_.weight_bits) - 1);
    const float below =
        scheme_.symmetric ? g.scale * static_cast<float>(1 << (scheme_.weight_bits - 1)) : g.offset;
    const float cut = std::max(high - (g.scale * top - below), -low - below);
    const float sure = cut - 0.01f * (high - low);
    return sure > 0 && std::pow(double{sure}, options_.norm) > double{bound_} * 1.001;
  }

  bool Choose(GroupScale* best) const {
    if (!std::isfinite(bound_)) return false;
    int kept[kMaxGrid], count = 0;
    for (int i = 0; i < tried_; ++i) {
      if (least_[i] <= bound_) kept[count++] = i;
    }
    if (count == 1) {
      *best = groups_[kept[0]];
      return true;
    }
    const PowerTable power(options_.norm);
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < count; ++i) {
      const GroupScale& g = groups_[kept[i]];
      const double error = GroupError(scheme_, g, values_, options_, power, least);
      if (error < least) {
        least = error;
        *best = g;
      }
    }
    return std::isfinite(least);
  }

  const Scheme& scheme_;
  const absl::Span<const float> values_;
  const RtnOptions& options_;
  GroupScale groups_[kMaxGrid];
  float least_[kMaxGrid];                                 // lower bounds of errors
  float bound_ = std::numeric_limits<float>::infinity();  // upper bound of the least error
  int tried_ = 0;
};

}  // namespace

GroupScale FitGroupScalar(const Scheme& scheme, absl::Span<const float> values,
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
    const float share = ShareOf(options, i, grid);
    const GroupScale g = Spanning(scheme, low * share, high * share);
    if (!(g.scale > 0) || (g.scale == tried.scale && g.offset == tried.offset)) continue;
    tried = g;
    const double error = GroupError(scheme, g, values, options, power, best_error);
    if (error < best_error) {
      best_error = error;
      best = g;
    }
  }
  return best;
}

GroupScale FitGroup(const Scheme& scheme, absl::Span<const float> values,
                    const RtnOptions& options) {
  if (!LaneFit::Can(scheme, values, options)) return FitGroupScalar(scheme, values, options);
  float low = 0, high = 0;
  for (const float v : values) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
  if (low == 0 && high == 0) return {};
  GroupScale best;
  if (LaneFit(scheme, values, options).Run(low, high, &best)) return best;
  return FitGroupScalar(scheme, values, options);
}

void RoundGroup(const Scheme& scheme, const GroupScale& g, absl::Span<const float> weights,
                uint8_t* codes) {
  static const bool lanes = HasRtnLanes();
  if (lanes && HasPlainCodes(scheme) && g.scale > 0) {
    const float middle =
        scheme.symmetric ? static_cast<float>(1 << (scheme.weight_bits - 1)) : 0.0f;
    RtnCodesAvx512(weights.data(), static_cast<int>(weights.size()), g.scale,
                   scheme.symmetric ? 0.0f : g.offset, middle,
                   static_cast<float>((1 << scheme.weight_bits) - 1), codes);
    return;
  }
  for (size_t i = 0; i < weights.size(); ++i) codes[i] = RoundToCode(scheme, g, weights[i]);
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
      RoundGroup(layout.scheme, g, weights.subspan(begin, count), q.codes.data() + begin);
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
