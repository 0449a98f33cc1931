// MissPlacer: computes the costs of misses for a placement policy, and checks its answers.
#ifndef MOERT_LIB_PLAN_MISS_PLACER_H_
#define MOERT_LIB_PLAN_MISS_PLACER_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/ewma.h"
#include "moert/policy.h"
#include "moert/scheduler.h"
#include "moert/tools/profile.h"
#include "rules/cpu_share.h"
#include "store/lent_blocks.h"
#include "transfer/link_pacer.h"

namespace moert {

/// The part of a CPU job's time that does not depend on its experts: the intercept of the line
/// through (modelled, measured) times of a job, over the last steps.
class JobStart {
 public:
  /// Adds the jobs of a step, their time by the profile and their measured time.
  void Add(int64_t jobs, int64_t modelled_ns, int64_t took_ns) {
    if (jobs <= 0) return;
    const double x = static_cast<double>(modelled_ns) / static_cast<double>(jobs);
    const double y = static_cast<double>(took_ns) / static_cast<double>(jobs);
    x_.Add(x);
    y_.Add(y);
    xx_.Add(x * x);
    xy_.Add(x * y);
  }

  /// The intercept; 0 as long as the jobs were too similar to estimate it.
  double ns() const {
    constexpr double kAlike = 0.01;     // least variance, as a share of the squared mean
    constexpr double kMostOfJob = 0.5;  // largest intercept, as a share of a mean job
    const double x = x_.mean(), y = y_.mean();
    const double variance = xx_.mean() - x * x;
    if (variance <= kAlike * x * x) return 0;
    const double slope = std::max(0.0, (xy_.mean() - x * y) / variance);
    return std::clamp(y - slope * x, 0.0, kMostOfJob * y);
  }

 private:
  Ewma<running_mean::kJobTime> x_, y_, xx_, xy_;
};

class MissPlacer {
 public:
  /// All arguments are borrowed. `policy`: its rule is carried out if it has one; null: every miss
  /// is loaded. `link` null: the profile's times are used for transfers and for the CPU.
  MissPlacer(PlacementPolicy* policy, const HardwareProfile* profile, const LinkEstimate* link,
             std::string cpu_version);

  /// See Scheduler.
  PlacedMisses Place(const PolicyContext& context, absl::Span<const Miss> misses,
                     const LinkLoad& link);
  void ObserveCpuTime(int64_t cpu_ns, int64_t took_ns);

  /// The current costs of misses of `bytes`, by which a device may place misses itself.
  CpuCosts Costs(int64_t bytes);
  /// Adds the counts of misses that a device placed.
  void CountServed(const ServedCount& count);

  PlacementPolicy* policy() const { return policy_; }
  SchedulerStats stats() const { return stats_; }

 private:
  MissView Price(const Miss& miss) const;
  int64_t TransferNs(int64_t bytes) const;
  int64_t CpuNs(int64_t bytes, int64_t tokens) const;
  /// A time of the profile, scaled by the measured speed of the CPU.
  int64_t Corrected(int64_t modelled_ns) const;
  void ObserveCpuRatio(double ratio);
  /// Notes that a decode call gave the CPU none of the misses that it could have computed.
  void PassOverCpu();
  int64_t BusyNs(const LinkLoad& link) const;

  const std::unique_ptr<PlacementPolicy> by_rule_;
  PlacementPolicy* const policy_;  // by_rule_, or the caller's
  const HardwareProfile* const profile_;
  const LinkEstimate* const link_;
  const std::string cpu_version_;
  SchedulerStats stats_;
  Ewma<running_mean::kCpuScale> cpu_scale_;  // measured over modelled
  JobStart job_start_;
  bool cpu_passed_over_ = false;  // since the last measurement
  int64_t modelled_bytes_ = -1;   // the record size of modelled_
  int64_t modelled_[kMostCpuTokens + 1] = {};
  std::vector<MissView> views_;  // scratch
};

}  // namespace moert

#endif  // MOERT_LIB_PLAN_MISS_PLACER_H_
