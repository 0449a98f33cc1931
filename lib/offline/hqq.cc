#include "offline/hqq.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "base/bf16.h"
#include "offline/hqq_lanes.h"
#include "offline/offline_device.h"
#include "offline/rtn_candidates.h"

namespace moert {
namespace {

/// The proximal operator of |x|^p / beta: the part of a residual that counts as an outlier.
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

struct Best {
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
    const float code = NearestSmall(std::clamp(v * inverse + zero, 0.0f, top));
    const float back = scheme.symmetric ? g.scale * (code - middle) : g.scale * code - g.offset;
    const double e = std::fabs(back - v);
    sum += power == 2 ? e * e : power == 1 ? e : std::pow(e, power);
  }
  return sum;
}

/// Keeps the better of *best and (scale, offset) in their stored form.
void Consider(const Scheme& scheme, float scale, float offset, absl::Span<const float> values,
              double select, Best* best) {
  const GroupScale g{RoundToBf16(scale), RoundToBf16(offset)};
  if (!(g.scale > 0) || !std::isfinite(g.scale) || !std::isfinite(g.offset)) return;
  const double error = SumOfPowers(scheme, g, values, select);
  if (error < best->error) *best = {g, error};
}

/// The published iteration for one scale: finds the zero with the least mean |error|.
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
      const float code = NearestSmall(std::clamp(v * inverse + zero, 0.0f, top));
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

/// Symmetric schemes: the scale is updated in closed form instead.
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
      const float code = NearestSmall(std::clamp(v * inverse + middle, 0.0f, top)) - middle;
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

/// Groups of `count` > 0 values each, and room for their scales.
struct HqqJob {
  std::vector<const float*> groups;
  std::vector<GroupScale*> fits;
  int64_t count;
};

/// FitHqq by vectors, a group a lane.
class HqqLaneFit {
 public:
  HqqLaneFit(const Scheme& scheme, const HqqOptions& options)
      : scheme_(scheme), options_(options), steps_(HqqStepsOf(options)) {}

  static bool Can(const Scheme& scheme, const HqqOptions& options) {
    static const bool lanes = HasHqqLanes();
    return lanes && HasPlainCodes(scheme) && options.select == 2 && options.scales > 1 &&
           options.scales <= kMaxHqqCandidates && options.iterations > 0;
  }

  void Run(const HqqJob& job) {
    job_ = &job;
    taken_ = 0;
    values_.assign(static_cast<size_t>(job.count) * kHqqLanes, 0.0f);
    if (scheme_.symmetric) doubles_.assign(values_.size(), 0.0);
    candidates_ = {};
    for (auto& scales : candidates_.scale) std::fill(std::begin(scales), std::end(scales), 1.0f);
    for (int lane = 0; lane < kHqqLanes; ++lane) Take(lane);
    const HqqGroups all = {values_.data(),
                           doubles_.data(),
                           static_cast<int>(job.count),
                           top_,
                           middle_,
                           options_.lp_norm,
                           options_.iterations,
                           steps_.betas.data(),
                           steps_.thresholds.data()};
    const HqqQueue queue = {this, [](void* self, int lane) {
                              static_cast<HqqLaneFit*>(self)->Choose(lane);
                              static_cast<HqqLaneFit*>(self)->Take(lane);
                            }};
    if (scheme_.symmetric) {
      HqqScalesAvx512(all, &candidates_, queue);
    } else {
      HqqZerosAvx512(all, &candidates_, queue);
    }
  }

 private:
  absl::Span<const float> Values(size_t group) const {
    return absl::MakeConstSpan(job_->groups[group], job_->count);
  }

  /// Gives the lane the next group that has candidates, if there is one.
  void Take(int lane) {
    candidates_.count[lane] = 0;
    while (candidates_.count[lane] == 0 && taken_ < job_->groups.size()) {
      const size_t group = taken_++;
      Begin(lane, Values(group));
      if (candidates_.count[lane] == 0) {
        *job_->fits[group] = FitGroup(scheme_, Values(group), RtnOptions());
        continue;
      }
      group_[lane] = group;
      float* to = values_.data() + lane;
      for (const float v : Values(group)) *to = v, to += kHqqLanes;
      if (!scheme_.symmetric) continue;
      double* wide = doubles_.data() + lane;
      for (const float v : Values(group)) *wide = v, wide += kHqqLanes;
    }
  }

  /// The first candidates of a group.
  void Begin(int lane, absl::Span<const float> values) {
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    if (!(*high > *low)) return;  // a constant group: no scale to begin with
    candidates_.span[lane] = *high - *low;
    int n = 0;
    for (int i = 0; i < options_.scales; ++i) {
      const float share = HqqShare(options_, i);
      float& scale = candidates_.scale[n][lane];
      if (scheme_.symmetric) {
        scale = std::max(std::fabs(*low), std::fabs(*high)) / (middle_ - 1) * share;
        ++n;
        continue;
      }
      // In steps of the scale that is stored, so that the zero fits it.
      scale = RoundToBf16((*high - *low) * share / top_);
      if (scale > 0) candidates_.zero[n++][lane] = -*low * share / scale;
    }
    candidates_.count[lane] = n;
  }

  /// Chooses the best candidate of the lane's group, in its stored form.
  void Choose(int lane) {
    float scale[kMaxHqqCandidates] = {}, offset[kMaxHqqCandidates] = {};
    int count = 0;
    for (int c = 0; c < candidates_.count[lane]; ++c) {
      const float found = candidates_.scale[c][lane];
      scale[count] = RoundToBf16(found);
      offset[count] = scheme_.symmetric ? 0.0f : RoundToBf16(candidates_.zero[c][lane] * found);
      const bool legal =
          scale[count] > 0 && std::isfinite(scale[count]) && std::isfinite(offset[count]);
      count += legal ? 1 : 0;
    }
    const absl::Span<const float> values = Values(group_[lane]);
    double errors[kMaxHqqCandidates];
    HqqErrorsAvx512(values.data(), static_cast<int>(job_->count), top_, middle_, scheme_.symmetric,
                    scale, offset, count, errors);
    Best best;
    for (int c = 0; c < count; ++c) {
      if (errors[c] < best.error) best = {{scale[c], offset[c]}, errors[c]};
    }
    *job_->fits[group_[lane]] =
        std::isfinite(best.error) ? best.group : FitGroup(scheme_, values, RtnOptions());
  }

  const Scheme& scheme_;
  const HqqOptions& options_;
  const float top_ = static_cast<float>((1 << scheme_.weight_bits) - 1);
  const float middle_ = static_cast<float>(1 << (scheme_.weight_bits - 1));
  const HqqSteps steps_;
  std::vector<float> values_;
  std::vector<double> doubles_;
  HqqCandidates candidates_;
  const HqqJob* job_ = nullptr;
  size_t taken_ = 0;         // of the job's groups
  size_t group_[kHqqLanes];  // of a lane
};

/// Fits the scales that are not known yet, over all groups of a matrix in the order of
/// QuantizeGroups.
void FitUnknown(const MatrixLayout& layout, absl::Span<const float> weights,
                const HqqOptions& options, absl::Span<GroupScale> fits) {
  const int64_t groups = layout.groups(), tail = layout.k - (groups - 1) * layout.group;
  HqqJob whole = {{}, {}, layout.group}, last = {{}, {}, tail};  // a row's last may be smaller
  for (int64_t r = 0; r < layout.rows; ++r) {
    for (int64_t n = 0; n < groups; ++n) {
      if (fits[r * groups + n].Known()) continue;
      HqqJob& job = n + 1 < groups ? whole : last;
      job.groups.push_back(weights.data() + r * layout.k + n * layout.group);
      job.fits.push_back(&fits[r * groups + n]);
    }
  }
  HqqLaneFit lanes(layout.scheme, options);
  for (const HqqJob* job : {&whole, &last}) {
    if (!job->groups.empty()) lanes.Run(*job);
  }
}

}  // namespace

float HqqShare(const HqqOptions& options, int candidate) {
  if (options.scales <= 1) return 1.0f;
  return static_cast<float>(1 - (1 - options.smallest) * candidate / double(options.scales - 1));
}

HqqSteps HqqStepsOf(const HqqOptions& options) {
  HqqSteps steps;
  for (int i = 0; i < options.iterations; ++i) {
    steps.betas.push_back(i == 0 ? options.beta : steps.betas.back() * options.kappa);
    const double threshold = std::pow(steps.betas.back(), 1 / (options.lp_norm - 2));
    steps.thresholds.push_back(static_cast<float>(threshold));
  }
  return steps;
}

float HqqShrink(float residual, double lp_norm, double beta) {
  return Shrink(lp_norm, beta)(residual);
}

GroupScale FitHqqScalar(const Scheme& scheme, absl::Span<const float> values,
                        const HqqOptions& options) {
  if (!HasPlainCodes(scheme)) return FitGroup(scheme, values, RtnOptions());
  const auto [low_at, high_at] = std::minmax_element(values.begin(), values.end());
  const float low = *low_at, high = *high_at;
  const float top = static_cast<float>((1 << scheme.weight_bits) - 1);
  const float middle = static_cast<float>(1 << (scheme.weight_bits - 1));
  // A constant group: a zero scale cannot hold it, and the iteration would divide by it.
  if (!(high > low)) return FitGroup(scheme, values, RtnOptions());
  Best best;
  const int scales = std::max(1, options.scales);
  for (int i = 0; i < scales; ++i) {
    const float share = HqqShare(options, i);
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

GroupScale FitHqq(const Scheme& scheme, absl::Span<const float> values, const HqqOptions& options) {
  if (values.empty() || !HqqLaneFit::Can(scheme, options)) {
    return FitHqqScalar(scheme, values, options);
  }
  GroupScale fit;
  HqqLaneFit(scheme, options).Run({{values.data()}, {&fit}, static_cast<int64_t>(values.size())});
  return fit;
}

QuantizedMatrix QuantizeHqq(const MatrixLayout& layout, absl::Span<const float> weights,
                            const HqqOptions& options, OfflineDevice* device) {
  if (!HasPlainCodes(layout.scheme)) return QuantizeRtn(layout, weights, {}, device);
  std::vector<GroupScale> fits;
  if (device != nullptr) fits = device->Hqq(layout, weights, options);
  fits.resize(layout.rows * layout.groups(), GroupScale::Unknown());
  if (HqqLaneFit::Can(layout.scheme, options)) {
    FitUnknown(layout, weights, options, absl::MakeSpan(fits));
  }
  size_t next = 0;
  return QuantizeGroups(layout, weights, [&](absl::Span<const float> values) {
    const GroupScale& fit = fits[next++];
    return fit.Known() ? fit : FitHqq(layout.scheme, values, options);
  });
}

}  // namespace moert
