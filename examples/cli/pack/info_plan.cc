#include "cli/pack/info_plan.h"

#include "absl/strings/str_cat.h"
#include "cli/common/budget_flag.h"
#include "cli/common/checkpoint_choice.h"
#include "moert/engine.h"
#include "moert/tools/auto_strategy.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

using nlohmann::json;

/// The engine's own plan for a budget of the CPU backend.
EngineOptions EngineFor(const PlanOptions& options, const Budget& budget) {
  EngineOptions engine;
  engine.strategy = options.strategy;
  engine.budget = budget;
  engine.max_tokens_per_forward = options.rows;
  engine.backend = BackendKind::kCpu;
  engine.profile = options.machine;
  engine.link_gbps = options.link_gbps;
  return engine;
}

absl::StatusOr<MemoryPlan> PlanBudget(const ExpertSource& source, const PlanOptions& options,
                                      const Budget& budget) {
  return Engine::Plan(source, EngineFor(options, budget));
}

json PlanJson(const absl::StatusOr<MemoryPlan>& plan) {
  if (!plan.ok()) return {{"fits", false}, {"message", std::string(plan.status().message())}};
  return {{"fits", true},
          {"budget_bytes", plan->budget_bytes},
          {"fixed_bytes", plan->fixed_bytes()},
          {"pool_bytes", plan->pool_bytes()},
          {"slots", plan->slots},
          {"low_slots", plan->low_slots},
          {"minimum_bytes", plan->minimum_bytes},
          {"message", plan->ToString()}};
}

constexpr double kShares[] = {1.0, 0.5, 0.25};

}  // namespace

absl::StatusOr<json> BudgetsJson(const std::string& path, const MoeModelSpec& model,
                                 const std::vector<PackVersion>& versions,
                                 const PlanOptions& options) {
  MOERT_ASSIGN_OR_RETURN(const auto source, MakeLayoutSource(path, model, versions));
  json budgets = json::array();
  int64_t least = 0;
  for (const double share : kShares) {
    const auto plan = PlanBudget(*source, options, Budget::Fraction(share));
    // A refusal that holds for every budget (a strategy that does not exist, say) is said once.
    if (!plan.ok() && share == kShares[0]) return plan.status();
    budgets.push_back({{"share", share}, {"bytes", nullptr}});
    if (!plan.ok()) continue;  // less than the least
    budgets.back()["bytes"] = plan->budget_bytes;
    least = plan->minimum_bytes;
  }
  json out = {{"budgets", std::move(budgets)}, {"minimum_bytes", least}};
  if (!options.budget.empty()) {
    const absl::StatusOr<Budget> budget = ParseBudget(options.budget);
    if (!budget.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--budget: ", budget.status().message()));
    }
    out["plan"] = PlanJson(PlanBudget(*source, options, *budget));
    const auto choice = ChooseStrategy(*source, EngineFor(options, *budget));
    if (choice.ok() && IsAuto(options.strategy)) {
      out["plan"]["strategy"] = choice->spec;
      out["plan"]["why"] = choice->why;
    }
  }
  return out;
}

json VersionJson(const PackVersion& version, const VersionSize& size) {
  json formats = json::array();
  for (const ExpertFormat& f : version.formats) {
    formats.push_back({f.gate.Name(), f.up.Name(), f.down.Name()});
  }
  return {{"name", version.name},
          {"formats", std::move(formats)},
          {"bytes", size.bytes},
          {"stored_bits", size.stored_bits()},
          {"padding", size.padding()}};
}

absl::Status AddChoice(const std::string& path, const HfConfig& config, const PlanOptions& options,
                       json* info) {
  if (options.budget.empty()) return absl::OkStatus();
  MOERT_ASSIGN_OR_RETURN(const Budget budget, ParseBudget(options.budget));
  MOERT_ASSIGN_OR_RETURN(const auto choice,
                         ChooseForCheckpoint(path, config, EngineFor(options, budget)));
  if (!choice) return absl::OkStatus();
  json versions = json::array();
  for (const PackVersion& v : choice->versions) {
    MOERT_ASSIGN_OR_RETURN(const VersionSize size, SizeOf(config.moe, v));
    versions.push_back(VersionJson(v, size));
  }
  (*info)["choice"] = {{"strategy", choice->strategy.spec},
                       {"why", choice->strategy.why},
                       {"versions", std::move(versions)}};
  return absl::OkStatus();
}

}  // namespace moert::cli
