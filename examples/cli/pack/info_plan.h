// The budget part of `moert-pack info`: the engine's own plans, and the choice of `auto`.
#ifndef MOERT_EXAMPLES_CLI_PACK_INFO_PLAN_H_
#define MOERT_EXAMPLES_CLI_PACK_INFO_PLAN_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "moert/model.h"
#include "moert/offline/hf_config.h"
#include "moert/offline/pack.h"
#include "moert/tools/profile.h"

namespace moert::cli {

/// The run that is planned.
struct PlanOptions {
  std::string budget;  // empty: none
  std::string strategy = "on-demand";
  int64_t rows = 512;  // of the largest step
  std::string profile = "reference";
  double link_gbps = 0;     // 0: the profile's
  HardwareProfile machine;  // of that name
};

/// The budgets that hold all experts, half and a quarter of them, the smallest one, and what fits
/// into the one asked for.
absl::StatusOr<nlohmann::json> BudgetsJson(const std::string& path, const MoeModelSpec& model,
                                           const std::vector<PackVersion>& versions,
                                           const PlanOptions& options);

nlohmann::json VersionJson(const PackVersion& version, const VersionSize& size);

/// Adds the choice of `auto` for a checkpoint within an accepted loss, if that is planned.
absl::Status AddChoice(const std::string& path, const HfConfig& config, const PlanOptions& options,
                       nlohmann::json* info);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_PACK_INFO_PLAN_H_
