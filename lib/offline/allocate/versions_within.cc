#include "moert/offline/versions_within.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/exception_status.h"
#include "base/status_macros.h"
#include "moert/offline/allocate.h"
#include "offline/sorted_versions.h"

namespace moert {
namespace {

AllocationOptions Options() {
  AllocationOptions options;
  options.measure = LossMeasure::kEndToEnd;
  options.solver = AllocationSolver::kRelaxation;
  return options;
}

/// The plan with the fewest bytes that loses at most `nats` per token, to one part in 4,096 of the
/// capacities in [least, most]; nothing if even `most` bytes lose more.
absl::StatusOr<std::optional<Allocation>> SmallestPlan(const Calibration& calibration, double nats,
                                                       int64_t least, int64_t most) {
  std::optional<Allocation> best;
  const int64_t exact_enough = std::max<int64_t>(1, (most - least) >> 12);
  AllocationOptions options = Options();
  for (options.capacity = most; most - least >= exact_enough;
       options.capacity = least + (most - least) / 2) {
    MOERT_ASSIGN_OR_RETURN(Allocation found, Allocate(calibration, options));
    if (found.loss <= nats) {
      most = options.capacity - 1;
      best = std::move(found);
    } else if (!best) {
      return best;
    } else {
      least = options.capacity + 1;
    }
  }
  return best;
}

absl::StatusOr<std::vector<PackVersion>> Find(const Calibration& calibration, double accepted) {
  std::vector<PackVersion> versions = {PackVersion::Uniform(Scheme{})};
  int64_t least = INT64_MAX, most = 0;
  for (const Scheme& scheme : calibration.schemes) {
    PackVersion uniform = PackVersion::Uniform(scheme, calibration.hadamard && !scheme.is_bf16());
    MOERT_ASSIGN_OR_RETURN(const Allocation all, Predict(calibration, Options(), uniform));
    least = std::min(least, all.bytes);
    most = std::max(most, all.bytes);
    if (!scheme.is_bf16() && std::expm1(all.loss) <= accepted) versions.push_back(uniform);
  }
  for (const double share : {1.0, 0.5, 0.25}) {
    MOERT_ASSIGN_OR_RETURN(std::optional<Allocation> plan,
                           SmallestPlan(calibration, std::log1p(share * accepted), least, most));
    if (!plan) continue;
    plan->version.name = fmt::format("mixed-{:.4g}", plan->stored_bits);
    const auto same = [&](const PackVersion& v) { return v.name == plan->version.name; };
    if (std::none_of(versions.begin(), versions.end(), same)) versions.push_back(plan->version);
  }
  return offline::SortedVersions(calibration.model, std::move(versions));
}

}  // namespace

absl::StatusOr<std::vector<PackVersion>> VersionsWithin(const Calibration& calibration,
                                                        double accepted_loss) try {
  return Find(calibration, accepted_loss);
} catch (...) {
  return ExceptionStatus("versions within a loss");
}

}  // namespace moert
