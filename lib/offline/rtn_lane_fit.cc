#include "offline/rtn_lane_fit.h"

#include <algorithm>
#include <cmath>

#include "offline/rtn_candidates.h"

namespace moert {
namespace {

// Bounds of a sum's error: that of the functions and of a table, relative and per value.
constexpr float kRelative = 3e-5f, kPerAdded = 4e-9f;
constexpr float kPerCode = 4e-7f, kPerCoarseCode = 8e-5f;
// A product in place of a quotient may choose the other of two values that are almost equally near.
constexpr float kRelativeOfFloats = 5e-5f, kPerFloat = 1e-14f;

constexpr int kUsualGrid = RtnOptions{}.grid;

struct UsualShares {
  float shares[kUsualGrid];
  UsualShares() {
    for (int i = 0; i < kUsualGrid; ++i) shares[i] = RangeShare(RtnOptions(), i, kUsualGrid);
  }
};

float Bottom(const Scheme& scheme) {
  if (scheme.fp8 || scheme.fp4) return -LargestFloat(scheme);
  return scheme.symmetric ? -static_cast<float>(1 << (scheme.weight_bits - 1)) : 0.0f;
}

float SpanOf(const Scheme& scheme) {
  if (scheme.fp8 || scheme.fp4) return 2 * LargestFloat(scheme);
  return static_cast<float>((1 << scheme.weight_bits) - 1);
}

}  // namespace

SumSlack SlackOfSums(const Scheme& scheme, int64_t values) {
  const float relative = kRelative + kPerAdded * static_cast<float>(values);
  if (scheme.fp8 || scheme.fp4) return {relative + kRelativeOfFloats, kPerFloat};
  return {relative, kPerCode};
}

LaneFit::LaneFit(const Scheme& scheme, absl::Span<const float> values, const RtnOptions& options,
                 const RtnLanes& lanes)
    : scheme_(scheme),
      values_(values),
      options_(options),
      lanes_(lanes),
      floats_(scheme.fp8 || scheme.fp4),
      largest_(floats_ ? LargestFloat(scheme) : 1.0f),
      bottom_(Bottom(scheme)),
      span_(SpanOf(scheme)),
      slack_(SlackOfSums(scheme, static_cast<int64_t>(values.size()))) {}

bool LaneFit::Can(const Scheme& scheme, absl::Span<const float> values, const RtnOptions& options) {
  const bool floats = scheme.fp8 || scheme.fp4;
  if (!floats && scheme.scales != ScaleType::kBF16 && scheme.scales != ScaleType::kF16)
    return false;
  return options.norm == RtnOptions{}.norm && options.grid >= 1 && options.grid <= kMaxGrid &&
         values.size() >= 16 && values.size() <= kMaxValues;
}

bool LaneFit::Run(GroupScale* best) {
  float low, high;
  const int outer =
      lanes_.arrange(values_.data(), static_cast<int>(values_.size()), arranged_, &low, &high);
  if (low == 0 && high == 0) return false;
  if (!(floats_ ? BoundFloats(low, high) : BoundIntegers(low, high, outer))) return false;
  int kept[kMaxGrid], count = 0;
  for (int i = 0; i < count_; ++i) {
    kept[count] = i;
    count += least_[i] <= bound_ ? 1 : 0;
  }
  for (int i = 0; i < count; ++i) {
    if (least_[kept[i]] <= bound_) Refine(kept[i]);
  }
  return Choose({kept, static_cast<size_t>(count)}, best);
}

/// The candidates' shares of the whole range; `room` for those of unusual options.
const float* LaneFit::Shares(float* room) const {
  static const UsualShares usual;
  if (options_.grid == kUsualGrid && options_.smallest == RtnOptions{}.smallest) {
    return usual.shares;
  }
  for (int i = 0; i < options_.grid; ++i) room[i] = RangeShare(options_, i, options_.grid);
  return room;
}

bool LaneFit::Begin(float first) {
  first_ = first;
  return first > 1e-30f && first < 1e30f;
}

/// Derives from the first candidate's error how much of the largest magnitude a scale may cut off.
bool LaneFit::BoundFloats(float low, float high) {
  float room[kMaxGrid];
  const float* const shares = Shares(room);
  const float most = std::max(-low, high);
  float smallest = 1e-30f;
  for (int i = 0; i < options_.grid; ++i) {
    const float scale = Spanning(scheme_, low * shares[i], high * shares[i]).scale;
    if (i == 0 && !Begin(scale)) return false;
    if (scale < smallest) break;
    if (count_ > 0 && scale == scale_[count_ - 1]) continue;
    scale_[count_] = scale;
    offset_[count_++] = 0;
    if (count_ > 1) continue;
    unit_[0] = 1;
    Refine(0);
    const double cut = std::pow(double{bound_} * 1.001, 1 / options_.norm) * first_;
    smallest = std::max(smallest, (most / largest_ - static_cast<float>(cut)) * (1 - 1e-4f));
  }
  lanes_.powers(scale_, count_, 1 / first_, unit_);
  for (int i = 1; i < count_; ++i) Refine(i);
  return true;
}

/// The error of cutting the range off at both ends rules out a part of the candidates.
bool LaneFit::BoundIntegers(float low, float high, int outer) {
  const int bits = scheme_.weight_bits;
  const int steps = (1 << (scheme_.symmetric ? bits - 1 : bits)) - 1;
  const RtnForm form = {static_cast<float>(steps),
                        scheme_.symmetric     ? RtnForm::kNone
                        : scheme_.zero_points ? RtnForm::kZeroPoints
                                              : RtnForm::kOffsets,
                        scheme_.scales == ScaleType::kF16};
  float room[kMaxGrid], cut[kMaxGrid];
  lanes_.spread(form, low, high, Shares(room), options_.grid, scale_, offset_);
  count_ = options_.grid;
  if (!Begin(scale_[0]) || !(scale_[count_ - 1] > 1e-30f)) return false;
  // A candidate that is probably good rules out others without computing them.
  const int likely = Likely();
  lanes_.powers(scale_ + likely, 1, 1 / first_, unit_ + likely);
  Refine(likely);
  const float likely_error = least_[likely];
  lanes_.cut_errors(Ranges(), low, high, first_, cut);
  while (count_ > likely + 1 && cut[count_ - 1] > bound_ * 1.001f) --count_;
  lanes_.powers(scale_, count_, 1 / first_, unit_);
  const int count = static_cast<int>(values_.size());
  const float least = lanes_.least_errors(arranged_, count, outer, Ranges(), unit_, slack_.relative,
                                          kPerCoarseCode * static_cast<float>(count), least_);
  least_[likely] = likely_error;
  // The most promising candidate first: the ones it rules out are not computed.
  for (int i = 0; i < count_; ++i) {
    if (least_[i] > least) continue;
    Refine(i);
    break;
  }
  return true;
}

RtnRanges LaneFit::Ranges() const {
  return {scale_, offset_, count_, bottom_, span_, scheme_.zero_points};
}

/// The candidate that suits normally distributed weights.
int LaneFit::Likely() const {
  const int bits = scheme_.weight_bits;
  const double share = bits >= 8 ? 1 : bits == 4 ? 0.85 : bits == 3 ? 0.7 : 0.55;
  const double at = (1 - share) / (1 - options_.smallest) * options_.grid;
  return std::clamp(static_cast<int>(at), 0, count_ - 1);
}

/// The error of a candidate in its own unit, about.
float LaneFit::Sum(int candidate) const {
  const int count = static_cast<int>(values_.size());
  const float scale = scale_[candidate], inverse = 1.0f / scale;
  if (floats_) return lanes_.float_error_sum(scheme_.fp8, values_.data(), count, scale);
  const float offset = offset_[candidate];
  const float zero = (scheme_.zero_points ? offset : offset * inverse) - bottom_;
  return lanes_.error_sum(values_.data(), count, span_, inverse, zero);
}

void LaneFit::Refine(int candidate) {
  if (refined_[candidate]) return;
  const float sum = Sum(candidate);
  const float slack = sum * slack_.relative + slack_.added * static_cast<float>(values_.size());
  least_[candidate] = unit_[candidate] * (sum - slack);
  bound_ = std::min(bound_, unit_[candidate] * (sum + slack));
  refined_[candidate] = true;
}

/// Chooses among candidates that may be the best.
bool LaneFit::Choose(absl::Span<const int> candidates, GroupScale* best) const {
  if (!std::isfinite(bound_)) return false;
  int kept[kMaxGrid], count = 0;
  for (const int i : candidates) {
    kept[count] = i;
    count += least_[i] <= bound_ ? 1 : 0;
  }
  if (count == 1) {
    *best = {scale_[kept[0]], offset_[kept[0]]};
    return true;
  }
  const PowerTable power(options_.norm);
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < count; ++i) {
    const GroupScale g = {scale_[kept[i]], offset_[kept[i]]};
    const double error = GroupError(scheme_, g, values_, options_, power, least);
    if (error < least) {
      least = error;
      *best = g;
    }
  }
  return std::isfinite(least);
}

}  // namespace moert
