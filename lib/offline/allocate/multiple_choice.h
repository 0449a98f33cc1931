// The multiple-choice knapsack problem: one option for every item, the least total cost, the bytes
// of all together within a capacity. The rest of MxMoE's allocation (Sec. 4 of the paper) once loss
// and time are one number.
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

/// By Lagrangian relaxation: every item on the convex hull of its options, steps taken by what they
/// save a byte, what is left over filled up. O(n log n). The cost exceeds the bound by less than
/// the steepest step that did not fit saves. InvalidArgument, naming the least capacity, if even
/// the smallest options do not fit.
absl::StatusOr<ChoiceSolution> SolveByRelaxation(const ChoiceProblem& problem);

/// By CBC's branch and cut, over the options that can be part of a better solution than that of
/// SolveByRelaxation. Not thread-safe. Unimplemented, saying what to install, without CBC.
absl::StatusOr<ChoiceSolution> SolveByMilp(const ChoiceProblem& problem,
                                           const MilpOptions& options = {});

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_ALLOCATE_MULTIPLE_CHOICE_H_
