#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "base/exception_status.h"
#include "base/status_macros.h"
#include "offline/allocate/multiple_choice.h"

#if MOERT_HAVE_CBC
#include <coin/Cbc_C_Interface.h>
#endif

namespace moert {

#if !MOERT_HAVE_CBC

bool HaveMilp() { return false; }

absl::StatusOr<ChoiceSolution> SolveByMilp(const ChoiceProblem&, const MilpOptions&) {
  return absl::UnimplementedError(
      "this build has no CBC: install it (Debian: coinor-libcbc-dev) and configure again, or use "
      "the Lagrangian solver");
}

#else

namespace {

struct Column {
  int item = 0;
  int option = 0;
};

// The problem without options that cannot be part of a better solution: those whose reduced cost at
// the multiplier exceeds the distance between the known solution and the bound.
struct Core {
  std::vector<Column> columns;  // by item
  ChoiceSolution known;
};

Core Reduce(const ChoiceProblem& problem, ChoiceSolution known) {
  Core core;
  const double slack = known.cost - known.bound + 1e-12 * std::fabs(known.cost);
  for (size_t i = 0; i < problem.items.size(); ++i) {
    const auto& options = problem.items[i];
    const auto value = [&](const ChoiceProblem::Option& o) {
      return o.cost + known.multiplier * static_cast<double>(o.bytes);
    };
    double best = std::numeric_limits<double>::infinity();
    for (const auto& o : options) best = std::min(best, value(o));
    for (size_t k = 0; k < options.size(); ++k) {
      if (value(options[k]) - best <= slack || static_cast<int>(k) == known.choice[i]) {
        core.columns.push_back({static_cast<int>(i), static_cast<int>(k)});
      }
    }
  }
  core.known = std::move(known);
  return core;
}

using Model = std::unique_ptr<Cbc_Model, void (*)(Cbc_Model*)>;

// Scales costs and bytes to about 1, because CBC's tolerances are absolute.
struct Units {
  double cost = 1, byte = 1;
};

Units UnitsOf(const ChoiceProblem& problem, const ChoiceSolution& known) {
  const double items = std::max<double>(1, static_cast<double>(problem.items.size()));
  return {std::max(std::fabs(known.cost) / items, 1e-300),
          std::max<double>(1, static_cast<double>(problem.capacity) / items)};
}

// One row per item, whose options sum to 1, and one for the bytes; starts from the known solution.
void Load(const ChoiceProblem& problem, const Core& core, const Units& units, Cbc_Model* model) {
  const int rows = static_cast<int>(problem.items.size()) + 1;
  const int columns = static_cast<int>(core.columns.size());
  std::vector<CoinBigIndex> starts = {0};
  std::vector<int> row_of, indices;
  std::vector<double> values, cost, low(static_cast<size_t>(columns), 0.0),
      high(static_cast<size_t>(columns), 1.0), known;
  for (const Column& c : core.columns) {
    const auto& option = problem.items[c.item][c.option];
    indices.push_back(static_cast<int>(indices.size()));
    row_of.insert(row_of.end(), {c.item, rows - 1});
    values.insert(values.end(), {1.0, static_cast<double>(option.bytes) / units.byte});
    starts.push_back(static_cast<CoinBigIndex>(row_of.size()));
    cost.push_back(option.cost / units.cost);
    known.push_back(core.known.choice[c.item] == c.option ? 1.0 : 0.0);
  }
  std::vector<double> row_low(static_cast<size_t>(rows), 1.0), row_high(row_low);
  row_low.back() = -std::numeric_limits<double>::max();
  row_high.back() = static_cast<double>(problem.capacity) / units.byte;
  Cbc_loadProblem(model, columns, rows, starts.data(), row_of.data(), values.data(), low.data(),
                  high.data(), cost.data(), row_low.data(), row_high.data());
  for (int c = 0; c < columns; ++c) Cbc_setInteger(model, c);
  Cbc_setMIPStartI(model, columns, indices.data(), known.data());
}

// Takes the columns that are 1 in `x` if they form a solution that is no worse than `best`.
void TakeBetter(const ChoiceProblem& problem, const Core& core, const double* x,
                ChoiceSolution* best) {
  ChoiceSolution found;
  found.choice.assign(problem.items.size(), -1);
  for (size_t c = 0; c < core.columns.size(); ++c) {
    const Column& column = core.columns[c];
    if (x[c] > 0.5) found.choice[column.item] = column.option;
  }
  for (size_t i = 0; i < found.choice.size(); ++i) {
    if (found.choice[i] < 0) return;
    const auto& option = problem.items[i][found.choice[i]];
    found.cost += option.cost;
    found.bytes += option.bytes;
  }
  // CBC's tolerance allows slightly more than the capacity; the allocation does not.
  if (found.bytes > problem.capacity || found.cost > best->cost) return;
  best->choice = std::move(found.choice);
  best->cost = found.cost;
  best->bytes = found.bytes;
}

absl::StatusOr<ChoiceSolution> SolveCore(const ChoiceProblem& problem, Core core,
                                         const MilpOptions& options) {
  const Units units = UnitsOf(problem, core.known);
  const Model model(Cbc_newModel(), &Cbc_deleteModel);
  Cbc_setLogLevel(model.get(), 0);
  Load(problem, core, units, model.get());
  Cbc_setParameter(model.get(), "log", "0");
  Cbc_setParameter(model.get(), "ratioGap", fmt::format("{}", options.gap).c_str());
  Cbc_setParameter(model.get(), "seconds", fmt::format("{}", options.seconds).c_str());
  Cbc_solve(model.get());

  ChoiceSolution s = core.known;
  const double* const x = Cbc_getColSolution(model.get());
  if (x != nullptr) TakeBetter(problem, core, x, &s);
  // CBC's proof covers the core; no better solution exists outside of it.
  double bound = Cbc_getBestPossibleObjValue(model.get()) * units.cost;
  if (Cbc_isProvenOptimal(model.get())) bound = std::max(bound, s.cost * (1 - options.gap));
  if (std::isfinite(bound)) s.bound = std::min(s.cost, std::max(s.bound, bound));
  return s;
}

}  // namespace

bool HaveMilp() { return true; }

absl::StatusOr<ChoiceSolution> SolveByMilp(const ChoiceProblem& problem,
                                           const MilpOptions& options) {
  MOERT_ASSIGN_OR_RETURN(ChoiceSolution known, SolveByRelaxation(problem));
  // Nothing can be gained, for example if everything fits.
  if (known.cost - known.bound <= 1e-12 * std::fabs(known.cost)) return known;
  try {
    return SolveCore(problem, Reduce(problem, std::move(known)), options);
  } catch (...) {  // CBC's own errors are no std::exception
    return ExceptionStatus("CBC");
  }
}

#endif

}  // namespace moert
