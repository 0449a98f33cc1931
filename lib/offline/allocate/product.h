// MxMoE's objective: L^r T^(1-r) for a summed loss L and a summed time T, under a byte capacity.
//
// The product is not linear, but its logarithm is concave in (L, T). So its minimum is at a corner
// of the convex hull of the feasible points, and every corner is the best solution for some
// weighted sum of L and T: a sweep of weighted sums finds it. Each sum's own lower bound is a half
// plane that contains all feasible points. The least product over the polygon that these half
// planes enclose, which is at one of its corners, bounds the optimum from below.
#ifndef MOERT_LIB_OFFLINE_ALLOCATE_PRODUCT_H_
#define MOERT_LIB_OFFLINE_ALLOCATE_PRODUCT_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "offline/allocate/multiple_choice.h"

namespace moert {

struct ProductProblem {
  struct Option {
    double loss = 0;  // >= 0
    double time = 0;  // >= 0; any unit
    int64_t bytes = 0;
  };
  std::vector<std::vector<Option>> items;
  int64_t capacity = 0;
  double r = 1;  // 0..1; 1: time does not matter
};

struct ProductSolution {
  std::vector<int> choice;
  double loss = 0, time = 0;
  int64_t bytes = 0;
  /// No solution's objective is less than (1 - gap) times this one's.
  double gap = 0;
};

/// Solves one weighted sum; SolveByRelaxation or SolveByMilp.
using ChoiceSolver = std::function<absl::StatusOr<ChoiceSolution>(const ChoiceProblem&)>;

/// `sums`: the number of weighted sums tried before those around the best. The sweep itself uses
/// relaxation; `solve` is used at the best weights.
absl::StatusOr<ProductSolution> MinimizeProduct(const ProductProblem& problem,
                                                const ChoiceSolver& solve, int sums = 33);

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_ALLOCATE_PRODUCT_H_
