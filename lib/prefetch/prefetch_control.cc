#include "prefetch/prefetch_control.h"

#include <algorithm>
#include <cmath>

namespace moert {

void PrefetchControl::Rest(int steps) {
  stage_ = Stage::kGap;
  left_ = steps;
  before_ns_ = trial_ns_ = after_ns_ = 0;
}

void PrefetchControl::StepDone(int64_t rows, int64_t ns) {
  if (rows != rows_) {
    // Steps of another size do not compare.
    rows_ = rows;
    if (stage_ != Stage::kGap) Rest(kFirstGap);
  }
  const bool settled = left_ <= kBlock - kSettle;
  const double t = settled ? static_cast<double>(ns) : 0;
  if (stage_ == Stage::kBefore) before_ns_ += t;
  if (stage_ == Stage::kTrial) trial_ns_ += t;
  if (stage_ == Stage::kAfter) after_ns_ += t;
  if (--left_ > 0) return;
  left_ = kBlock;
  switch (stage_) {
    case Stage::kGap:
      stage_ = Stage::kBefore;
      break;
    case Stage::kBefore:
      stage_ = Stage::kTrial;
      break;
    case Stage::kTrial:
      stage_ = Stage::kAfter;
      break;
    case Stage::kAfter:
      EndTrial();
      break;
  }
}

void PrefetchControl::EndTrial() {
  const double proven_ns = (before_ns_ + after_ns_) / 2;
  if (proven_ns <= 0) return Rest(gap_);
  ++trials_;
  gains_.push_back((proven_ns - trial_ns_) / proven_ns);
  if (gains_.size() > 2 * kTrials) gains_.erase(gains_.begin());
  const double n = static_cast<double>(gains_.size());
  double mean = 0, square = 0;
  for (const double gain : gains_) mean += gain / n;
  for (const double gain : gains_) square += (gain - mean) * (gain - mean);
  const double error = n > 1 ? std::sqrt(square / (n - 1) / n) : 0;

  // One percent: less is not worth a change of mode.
  constexpr double kWorthIt = 0.01;
  constexpr double kClear = 2;  // standard errors
  if (static_cast<int>(gains_.size()) >= kTrials && mean > kWorthIt && mean > kClear * error) {
    proven_ = !proven_;
    ++switches_;
    gains_.clear();
    gap_ = kFirstGap;
  } else if (gains_.back() > 0) {
    gap_ = kFirstGap / 4;  // it may be winning: find out soon
  } else {
    gap_ = std::clamp(2 * gap_, kFirstGap, kLongestGap);
  }
  Rest(gap_);
}

}  // namespace moert
