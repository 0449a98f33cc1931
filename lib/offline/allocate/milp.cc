#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <memory>
#include <string>

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

// What is left of the problem when options that no better solution can hold are gone: those whose
// reduced cost at the multiplier is more than what lies between the solution known and the bound.
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

absl::StatusOr<ChoiceSolution> SolveCore(const ChoiceProblem& problem, Core core,
                                         const MilpOptions& options) {
  const int rows = static_cast<int>(problem.items.size()) + 1;
  const int columns = static_cast<int>(core.columns.size());
  // Costs and bytes near 1: CBC's tolerances are absolute.
  const double cost_unit =
      std::max(std::fabs(core.known.cost) / std::max<double>(1, rows - 1), 1e-300);
  const double byte_unit =
      std::max<double>(1, static_cast<double>(problem.capacity) / std::max<double>(1, rows - 1));
  std::vector<CoinBigIndex> starts = {0};
  std::vector<int> row_of;
  std::vector<double> values, cost, low(static_cast<size_t>(columns), 0.0),
      high(static_cast<size_t>(columns), 1.0), known;
  for (const Column& c : core.columns) {
    const auto& option = problem.items[static_cast<size_t>(c.item)][static_cast<size_t>(c.option)];
    row_of.insert(row_of.end(), {c.item, rows - 1});
    values.insert(values.end(), {1.0, static_cast<double>(option.bytes) / byte_unit});
    starts.push_back(static_cast<CoinBigIndex>(row_of.size()));
    cost.push_back(option.cost / cost_unit);
    known.push_back(core.known.choice[static_cast<size_t>(c.item)] == c.option ? 1.0 : 0.0);
  }
  std::vector<double> row_low(static_cast<size_t>(rows), 1.0), row_high(row_low);
  row_low.back() = -std::numeric_limits<double>::max();
  row_high.back() = static_cast<double>(problem.capacity) / byte_unit;

  const Model model(Cbc_newModel(), &Cbc_deleteModel);
  Cbc_setLogLevel(model.get(), 0);
  Cbc_loadProblem(model.get(), columns, rows, starts.data(), row_of.data(), values.data(),
                  low.data(), high.data(), cost.data(), row_low.data(), row_high.data());
  for (int c = 0; c < columns; ++c) Cbc_setInteger(model.get(), c);
  Cbc_setParameter(model.get(), "log", "0");
  Cbc_setParameter(model.get(), "ratioGap", fmt::format("{}", options.gap).c_str());
  Cbc_setParameter(model.get(), "seconds", fmt::format("{}", options.seconds).c_str());
  std::vector<int> indices(static_cast<size_t>(columns));
  for (int c = 0; c < columns; ++c) indices[static_cast<size_t>(c)] = c;
  Cbc_setMIPStartI(model.get(), columns, indices.data(), known.data());
  Cbc_solve(model.get());

  ChoiceSolution s = core.known;
  const double* const x = Cbc_getColSolution(model.get());
  if (x != nullptr) {
    ChoiceSolution found;
    found.choice.assign(problem.items.size(), -1);
    for (int c = 0; c < columns; ++c) {
      const Column& column = core.columns[static_cast<size_t>(c)];
      if (x[c] > 0.5) found.choice[static_cast<size_t>(column.item)] = column.option;
    }
    bool whole = true;
    for (size_t i = 0; i < found.choice.size(); ++i) {
      if (found.choice[i] < 0) {
        whole = false;
        break;
      }
      const auto& option = problem.items[i][static_cast<size_t>(found.choice[i])];
      found.cost += option.cost;
      found.bytes += option.bytes;
    }
    // CBC's tolerance allows a hair more than the capacity; ours does not.
    if (whole && found.bytes <= problem.capacity && found.cost <= s.cost) {
      s.choice = std::move(found.choice);
      s.cost = found.cost;
      s.bytes = found.bytes;
    }
  }
  // What CBC proved holds for the core; a better solution elsewhere there is none.
  double bound = Cbc_getBestPossibleObjValue(model.get()) * cost_unit;
  if (Cbc_isProvenOptimal(model.get())) bound = std::max(bound, s.cost * (1 - options.gap));
  if (std::isfinite(bound)) s.bound = std::min(s.cost, std::max(s.bound, bound));
  return s;
}

}  // namespace

bool HaveMilp() { return true; }

absl::StatusOr<ChoiceSolution> SolveByMilp(const ChoiceProblem& problem,
                                           const MilpOptions& options) {
  MOERT_ASSIGN_OR_RETURN(ChoiceSolution known, SolveByRelaxation(problem));
  // Nothing to gain, as when everything fits.
  if (known.cost - known.bound <= 1e-12 * std::fabs(known.cost)) return known;
  try {
    return SolveCore(problem, Reduce(problem, std::move(known)), options);
  } catch (...) {  // CBC's own errors are no std::exception
    return ExceptionStatus("CBC");
  }
}

#endif

}  // namespace moert
