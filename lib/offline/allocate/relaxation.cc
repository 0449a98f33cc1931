
#include <algorithm>

#include "base/errors.h"
#include "offline/allocate/multiple_choice.h"

namespace moert {
namespace {

using Option = ChoiceProblem::Option;

// A step from one option of an item to the next on its convex hull.
struct Upgrade {
  int item = 0;
  int to = 0;
  double saved = 0;  // cost, > 0
  int64_t bytes = 0;
  double rate() const { return saved / static_cast<double>(bytes); }
};

// The options on the hull, from the smallest to the cheapest.
std::vector<int> Hull(const std::vector<Option>& options) {
  std::vector<int> order(options.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  const auto at = [&](int i) -> const Option& { return options[i]; };
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    if (at(a).bytes != at(b).bytes) return at(a).bytes < at(b).bytes;
    if (at(a).cost != at(b).cost) return at(a).cost < at(b).cost;
    return a < b;
  });
  std::vector<int> hull;
  for (const int i : order) {
    if (!hull.empty() && at(i).cost >= at(hull.back()).cost) continue;
    while (hull.size() >= 2) {
      const Option& a = at(hull[hull.size() - 2]);
      const Option& b = at(hull.back());
      const double before = (a.cost - b.cost) * static_cast<double>(at(i).bytes - b.bytes);
      const double after = (b.cost - at(i).cost) * static_cast<double>(b.bytes - a.bytes);
      if (before > after) break;
      hull.pop_back();
    }
    hull.push_back(i);
  }
  return hull;
}

// Spends the remaining bytes: for each item the option that saves most and still fits, largest
// saving first.
void FillUp(const ChoiceProblem& problem, ChoiceSolution* s) {
  for (int round = 0; round < 8; ++round) {
    const int64_t slack = problem.capacity - s->bytes;
    std::vector<Upgrade> steps;
    for (size_t i = 0; i < problem.items.size(); ++i) {
      const auto& options = problem.items[i];
      const Option& now = options[s->choice[i]];
      Upgrade best;
      for (size_t k = 0; k < options.size(); ++k) {
        const double saved = now.cost - options[k].cost;
        if (saved > best.saved && options[k].bytes - now.bytes <= slack) {
          best = {static_cast<int>(i), static_cast<int>(k), saved, options[k].bytes - now.bytes};
        }
      }
      if (best.saved > 0) steps.push_back(best);
    }
    if (steps.empty()) return;
    std::stable_sort(steps.begin(), steps.end(),
                     [](const Upgrade& a, const Upgrade& b) { return a.saved > b.saved; });
    for (const Upgrade& step : steps) {
      if (s->bytes + step.bytes > problem.capacity) continue;
      s->choice[step.item] = step.to;
      s->bytes += step.bytes;
    }
  }
}

}  // namespace

absl::StatusOr<ChoiceSolution> SolveByRelaxation(const ChoiceProblem& problem) {
  ChoiceSolution s;
  std::vector<Upgrade> steps;
  double relaxed = 0;
  for (size_t i = 0; i < problem.items.size(); ++i) {
    const auto& options = problem.items[i];
    const std::vector<int> hull = Hull(options);
    s.choice.push_back(hull[0]);
    s.bytes += options[hull[0]].bytes;
    relaxed += options[hull[0]].cost;
    for (size_t h = 1; h < hull.size(); ++h) {
      const Option& from = options[hull[h - 1]];
      const Option& to = options[hull[h]];
      steps.push_back({static_cast<int>(i), hull[h], from.cost - to.cost, to.bytes - from.bytes});
    }
  }
  if (s.bytes > problem.capacity) {
    return InvalidArgument("{} bytes hold no choice: the smallest takes {}", problem.capacity,
                           s.bytes);
  }
  // Steps of one item are in order because its hull is convex; steps of equal rates keep the order
  // of items.
  std::stable_sort(steps.begin(), steps.end(),
                   [](const Upgrade& a, const Upgrade& b) { return a.rate() > b.rate(); });
  bool full = false;
  std::vector<char> stopped(problem.items.size(), 0);
  for (const Upgrade& step : steps) {
    const int64_t left = problem.capacity - s.bytes;
    if (!full && step.bytes > left) {
      full = true;
      s.multiplier = step.rate();
      relaxed -= step.rate() * static_cast<double>(left);
    }
    if (!full) relaxed -= step.saved;
    char& stop = stopped[step.item];
    if (stop || step.bytes > left) {
      stop = 1;
      continue;
    }
    s.choice[step.item] = step.to;
    s.bytes += step.bytes;
  }
  FillUp(problem, &s);
  for (size_t i = 0; i < problem.items.size(); ++i) s.cost += problem.items[i][s.choice[i]].cost;
  s.bound = std::min(relaxed, s.cost);  // rounding of the sums aside, it is
  return s;
}

}  // namespace moert
