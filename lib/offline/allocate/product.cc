#include "offline/allocate/product.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/status_macros.h"

namespace moert {
namespace {

constexpr int kRefinements = 8;

// All feasible points satisfy loss_weight * loss + time_weight * time >= bound.
struct HalfPlane {
  double loss_weight = 0, time_weight = 0, bound = 0;
};

class Sweep {
 public:
  explicit Sweep(const ProductProblem& problem) : problem_(problem) {
    choices_.capacity = problem.capacity;
    for (const auto& item : problem.items) choices_.items.emplace_back(item.size());
  }

  /// Finds the best solution for a weighted sum.
  absl::StatusOr<ProductSolution> Try(double loss_weight, double time_weight,
                                      const ChoiceSolver& solve) {
    for (size_t i = 0; i < problem_.items.size(); ++i) {
      for (size_t k = 0; k < problem_.items[i].size(); ++k) {
        const auto& from = problem_.items[i][k];
        choices_.items[i][k] = {loss_weight * from.loss + time_weight * from.time, from.bytes};
      }
    }
    MOERT_ASSIGN_OR_RETURN(ChoiceSolution found, solve(choices_));
    planes_.push_back({loss_weight, time_weight, found.bound});
    ProductSolution s;
    for (size_t i = 0; i < problem_.items.size(); ++i) {
      const auto& option = problem_.items[i][found.choice[i]];
      s.loss += option.loss;
      s.time += option.time;
      s.bytes += option.bytes;
    }
    s.choice = std::move(found.choice);
    return s;
  }

  double Objective(double loss, double time) const {
    if (problem_.r >= 1) return loss;
    if (problem_.r <= 0) return time;
    return std::pow(loss, problem_.r) * std::pow(time, 1 - problem_.r);
  }

  /// The least objective in the polygon of the half planes found so far.
  double Bound() const {
    std::vector<HalfPlane> planes = planes_;
    planes.push_back({1, 0, 0});
    planes.push_back({0, 1, 0});
    double least = std::numeric_limits<double>::infinity();
    for (size_t a = 0; a < planes.size(); ++a) {
      for (size_t b = a + 1; b < planes.size(); ++b) {
        const HalfPlane &p = planes[a], &q = planes[b];
        const double det = p.loss_weight * q.time_weight - q.loss_weight * p.time_weight;
        if (det == 0) continue;
        const double loss = (p.bound * q.time_weight - q.bound * p.time_weight) / det;
        const double time = (p.loss_weight * q.bound - q.loss_weight * p.bound) / det;
        const bool inside = std::all_of(planes.begin(), planes.end(), [&](const HalfPlane& h) {
          const double value = h.loss_weight * loss + h.time_weight * time;
          return value >= h.bound - 1e-9 * (std::fabs(h.bound) + std::fabs(value));
        });
        if (inside) least = std::min(least, Objective(std::max(loss, 0.0), std::max(time, 0.0)));
      }
    }
    return std::isfinite(least) ? least : 0;
  }

 private:
  const ProductProblem& problem_;
  ChoiceProblem choices_;
  std::vector<HalfPlane> planes_;
};

}  // namespace

absl::StatusOr<ProductSolution> MinimizeProduct(const ProductProblem& problem,
                                                const ChoiceSolver& solve, int sums) {
  Sweep sweep(problem);
  const double r = problem.r;
  ProductSolution best;
  const auto take = [&](ProductSolution s) {
    if (best.choice.empty() ||
        sweep.Objective(s.loss, s.time) < sweep.Objective(best.loss, best.time)) {
      best = std::move(s);
    }
  };
  if (r >= 1 || r <= 0) {
    MOERT_ASSIGN_OR_RETURN(best, sweep.Try(r >= 1 ? 1 : 0, r >= 1 ? 0 : 1, solve));
  } else {
    // Weights for which both count alike at the point half way between the least loss and the least
    // time.
    MOERT_ASSIGN_OR_RETURN(const ProductSolution least_loss, sweep.Try(1, 0, SolveByRelaxation));
    MOERT_ASSIGN_OR_RETURN(const ProductSolution least_time, sweep.Try(0, 1, SolveByRelaxation));
    const double loss = std::max((least_loss.loss + least_time.loss) / 2, 1e-300);
    const double time = std::max((least_loss.time + least_time.time) / 2, 1e-300);
    take(least_loss);
    take(least_time);
    for (int i = 1; i < sums; ++i) {
      const double share = static_cast<double>(i) / sums;
      MOERT_ASSIGN_OR_RETURN(ProductSolution s,
                             sweep.Try(share / loss, (1 - share) / time, SolveByRelaxation));
      take(std::move(s));
    }
    // The best solution for the product's slope at some solution is never worse than that solution.
    for (int i = 0; i <= kRefinements; ++i) {
      if (best.loss <= 0 || best.time <= 0) break;
      const double before = sweep.Objective(best.loss, best.time);
      const bool last = i == kRefinements;
      MOERT_ASSIGN_OR_RETURN(ProductSolution s, sweep.Try(r / best.loss, (1 - r) / best.time,
                                                          last ? solve : SolveByRelaxation));
      take(std::move(s));
      if (sweep.Objective(best.loss, best.time) >= before && !last) i = kRefinements - 1;
    }
  }
  const double objective = sweep.Objective(best.loss, best.time);
  best.gap = objective > 0 ? std::max(0.0, 1 - sweep.Bound() / objective) : 0;
  return best;
}

}  // namespace moert
