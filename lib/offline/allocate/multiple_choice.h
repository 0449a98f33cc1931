// The multiple-choice knapsack problem: choose one option per item so that the total cost is least
// and the total bytes stay within a capacity. MxMoE's allocation (Sec. 4 of the paper) reduces to
// it once loss and time are combined into one number.
#ifndef MOERT_LIB_OFFLINE_ALLOCATE_MULTIPLE_CHOICE_H_
#define MOERT_LIB_OFFLINE_ALLOCATE_MULTIPLE_CHOICE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/offline/allocate.h"

namespace moert {

struct ChoiceProblem {
  struct Option {
    double cost = 0;  // finite
    int64_t bytes = 0;
  };
  std::vector<std::vector<Option>> items;  // none empty
  int64_t capacity = 0;
};

struct ChoiceSolution {
  std::vector<int> choice;  // by item
  double cost = 0;
  int64_t bytes = 0;
  double bound = 0;       // no solution costs less
  double multiplier = 0;  // cost that a further byte would save, at the bound
};

/// Solves by Lagrangian relaxation: every item starts on the convex hull of its options, steps are
/// taken in the order of the cost they save per byte, and the remaining bytes are filled up. O(n
/// log n). The cost exceeds the bound by less than the saving of the steepest step that did not
/// fit. InvalidArgument, naming the least capacity, if even the smallest options do not fit.
absl::StatusOr<ChoiceSolution> SolveByRelaxation(const ChoiceProblem& problem);

/// Solves by CBC's branch and cut, over the options that can be part of a better solution than
/// SolveByRelaxation's. Not thread-safe. Unimplemented, naming the package to install, without CBC.
absl::StatusOr<ChoiceSolution> SolveByMilp(const ChoiceProblem& problem,
                                           const MilpOptions& options = {});

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_ALLOCATE_MULTIPLE_CHOICE_H_
