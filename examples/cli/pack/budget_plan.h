// What fits into a budget, from sizes alone: no weight is read and nothing is allocated.
#ifndef MOERT_EXAMPLES_CLI_PACK_BUDGET_PLAN_H_
#define MOERT_EXAMPLES_CLI_PACK_BUDGET_PLAN_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/engine.h"
#include "pack/pack_manifest.h"

namespace moert::cli {

/// What the flags of moert-pack info say of the run that is planned.
struct PlanOptions {
  std::string budget;  // empty: none
  std::string strategy = "on-demand";
  int64_t rows = 512;  // of the largest step
};

/// Experts of these versions, known by their layouts only.
absl::StatusOr<std::unique_ptr<ExpertSource>> MakeLayoutSource(
    const std::string& name, const MoeModelSpec& model, const std::vector<PackVersion>& versions);

/// The engine's own plan for a budget of the CPU backend.
absl::StatusOr<MemoryPlan> PlanBudget(const ExpertSource& source, const PlanOptions& options,
                                      const Budget& budget);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_PACK_BUDGET_PLAN_H_
