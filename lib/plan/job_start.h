// JobStart: the part of a CPU job's time that does not depend on its experts, as steps show that
// differ in how much a job has to do.
#ifndef MOERT_LIB_PLAN_JOB_START_H_
#define MOERT_LIB_PLAN_JOB_START_H_

#include <algorithm>
#include <cstdint>

#include "base/ewma.h"

namespace moert {

/// The intercept of the line through (modelled, measured) times of a job, over the last steps.
class JobStart {
 public:
  /// A step's jobs, the time that the profile says they take, and the time they took.
  void Add(int64_t jobs, int64_t modelled_ns, int64_t took_ns) {
    if (jobs <= 0) return;
    const double x = static_cast<double>(modelled_ns) / static_cast<double>(jobs);
    const double y = static_cast<double>(took_ns) / static_cast<double>(jobs);
    x_.Add(x);
    y_.Add(y);
    xx_.Add(x * x);
    xy_.Add(x * y);
  }

  /// 0 as long as jobs were too alike to tell.
  double ns() const {
    constexpr double kAlike = 0.01;     // of the square of the mean
    constexpr double kMostOfJob = 0.5;  // of a mean job
    const double x = x_.mean(), y = y_.mean();
    const double variance = xx_.mean() - x * x;
    if (variance <= kAlike * x * x) return 0;
    const double slope = std::max(0.0, (xy_.mean() - x * y) / variance);
    return std::clamp(y - slope * x, 0.0, kMostOfJob * y);
  }

 private:
  Ewma<running_mean::kJobTime> x_, y_, xx_, xy_;
};

}  // namespace moert

#endif  // MOERT_LIB_PLAN_JOB_START_H_
