#include "offline/rtn_lane_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "offline/rtn_candidates.h"
#include "offline/rtn_lanes.h"

namespace moert {
namespace {

// What a sum may be off: the functions' own error and a table's, relative and for each value.
constexpr float kRelative = 3e-5f, kPerAdded = 4e-9f;
constexpr float kPerCode = 4e-7f, kPerCoarseCode = 8e-5f;
// A product instead of a quotient may choose the other of two values that are about as near.
constexpr float kRelativeOfFloats = 5e-5f, kPerFloat = 1e-14f;

using Shares = std::array<float, LaneFit::kMaxGrid>;

Shares SharesOf(const RtnOptions& options) {
  Shares shares = {};
  for (int i = 0; i < options.grid; ++i) {
    shares[static_cast<size_t>(i)] = RangeShare(options, i, options.grid);
  }
  return shares;
}

}  // namespace

LaneFit::LaneFit(const Scheme& scheme, absl::Span<const float> values, const RtnOptions& options)
    : scheme_(scheme),
      values_(values),
      options_(options),
      floats_(scheme.fp8 || scheme.fp4),
      top_(floats_ ? LargestFloat(scheme) : static_cast<float>((1 << scheme.weight_bits) - 1)),
      relative_((floats_ ? kRelativeOfFloats : 0) + kRelative +
                kPerAdded * static_cast<float>(values.size())) {}

bool LaneFit::Can(absl::Span<const float> values, const RtnOptions& options) {
  static const bool lanes = HasRtnLanes();
  return lanes && options.norm == RtnOptions{}.norm && options.grid >= 1 &&
         options.grid <= kMaxGrid && values.size() >= 16 && values.size() <= 16384;
}

bool LaneFit::Run(GroupScale* best) {
  float low, high;
  RtnRangeAvx512(values_.data(), static_cast<int>(values_.size()), &low, &high);
  if (low == 0 && high == 0) return false;
  for (int begin = 0; begin < options_.grid; begin += kChunk) {
    const int first = count_;
    if (!Collect(low, high, begin, std::min(options_.grid, begin + kChunk))) return false;
    BoundBelow(first, count_);
    // One that is probably good says which of the others need no second look.
    const auto lowest = std::min_element(least_ + first, least_ + count_);
    if (first < count_ && *lowest <= bound_) Refine(static_cast<int>(lowest - least_));
    if (NoneBetterFrom(low, high)) break;
  }
  for (int i = 0; i < count_; ++i) {
    if (least_[i] <= bound_) Refine(i);
  }
  return Choose(best);
}

bool LaneFit::Collect(float low, float high, int begin, int end) {
  static const Shares usual_shares = SharesOf(RtnOptions());
  const bool usual =
      options_.grid == RtnOptions{}.grid && options_.smallest == RtnOptions{}.smallest;
  const int first = count_;
  float ratio[kChunk];
  for (int i = begin; i < end; ++i) {
    const float share =
        usual ? usual_shares[static_cast<size_t>(i)] : RangeShare(options_, i, options_.grid);
    const GroupScale g = Spanning(scheme_, low * share, high * share);
    if (count_ > 0 && g.scale == groups_[count_ - 1].scale &&
        g.offset == groups_[count_ - 1].offset) {
      continue;
    }
    if (g.scale == 0 && count_ > 0) continue;  // too small for the type that scales have
    if (!(g.scale > 1e-30f && g.scale < 1e30f)) return false;
    groups_[count_] = g;
    ratio[count_ - first] = g.scale / groups_[0].scale;
    refined_[count_++] = false;
  }
  RtnPowersAvx512(ratio, count_ - first, unit_ + first);
  return true;
}

void LaneFit::BoundBelow(int begin, int end) {
  if (floats_) {
    for (int i = begin; i < end; ++i) Refine(i);
    return;
  }
  float inverse[kChunk] = {}, zero[kChunk] = {}, sum[kChunk];
  const float middle = static_cast<float>(1 << (scheme_.weight_bits - 1));
  for (int i = begin; i < end; ++i) {
    const GroupScale& g = groups_[i];
    inverse[i - begin] = 1.0f / g.scale;
    zero[i - begin] = scheme_.symmetric     ? middle
                      : scheme_.zero_points ? g.offset
                                            : g.offset * inverse[i - begin];
  }
  const float count = static_cast<float>(values_.size());
  RtnLeastSumsAvx512(values_.data(), static_cast<int>(values_.size()), top_, inverse, zero,
                     end - begin, sum);
  for (int i = begin; i < end; ++i) {
    least_[i] = unit_[i] * (sum[i - begin] * (1 - relative_) - kPerCoarseCode * count);
  }
}

LaneFit::Bounds LaneFit::Bound(int candidate) const {
  const GroupScale& g = groups_[candidate];
  const int count = static_cast<int>(values_.size());
  const float inverse = 1.0f / g.scale;
  float sum;
  if (floats_) {
    sum = RtnFloatErrorSumAvx512(scheme_.fp8, values_.data(), count, g.scale);
  } else {
    const float zero = scheme_.symmetric     ? static_cast<float>(1 << (scheme_.weight_bits - 1))
                       : scheme_.zero_points ? g.offset
                                             : g.offset * inverse;
    sum = RtnErrorSumAvx512(values_.data(), count, top_, inverse, zero);
  }
  const float slack =
      sum * relative_ + (floats_ ? kPerFloat : kPerCode) * static_cast<float>(count);
  return {unit_[candidate] * (sum - slack), unit_[candidate] * (sum + slack)};
}

void LaneFit::Refine(int candidate) {
  if (refined_[candidate]) return;
  const Bounds bounds = Bound(candidate);
  least_[candidate] = bounds.least;
  bound_ = std::min(bound_, bounds.most);
  refined_[candidate] = true;
}

/// Whether what the last range cuts off its extremes alone is more than the best error: all later
/// candidates cut off more. Ranges are rounded, hence the slack.
bool LaneFit::NoneBetterFrom(float low, float high) const {
  const GroupScale& g = groups_[count_ - 1];
  const float first = groups_[0].scale;
  float cut, errors = 1;
  if (floats_) {
    cut = std::max(high, -low) / top_ - g.scale;  // the errors' unit is the largest magnitude
  } else if (scheme_.zero_points) {
    // The zero moves in whole steps: only the sum of what both sides lose is sure to grow.
    cut = 0.5f * (high - low - g.scale * top_);
    errors = 2;
  } else {
    const float below =
        scheme_.symmetric ? g.scale * static_cast<float>(1 << (scheme_.weight_bits - 1)) : g.offset;
    cut = std::max(high - (g.scale * top_ - below), -low - below);
  }
  const float sure = cut - 0.01f * (high - low) / (floats_ ? top_ : 1);
  return sure > 0 &&
         errors * std::pow(double{sure} / double{first}, options_.norm) > double{bound_} * 1.001;
}

bool LaneFit::Choose(GroupScale* best) {
  if (!std::isfinite(bound_)) return false;
  int kept[kMaxGrid], count = 0;
  for (int i = 0; i < count_; ++i) {
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

}  // namespace moert
