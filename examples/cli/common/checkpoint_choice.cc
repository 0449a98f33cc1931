#include "cli/common/checkpoint_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "moert/offline/calibration.h"
#include "moert/offline/versions_within.h"
#include "moert/strategy.h"
#include "moert/tools/env.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

/// The `versions` that the strategy serves, but bf16 alone.
absl::StatusOr<std::vector<PackVersion>> Served(const std::string& spec,
                                                const std::vector<PackVersion>& versions) {
  MOERT_ASSIGN_OR_RETURN(const Strategy strategy, MakeStrategy(spec));
  std::vector<PackVersion> served;
  for (const PackVersion& v : versions) {
    const auto& names = strategy.versions;
    if (std::find(names.begin(), names.end(), v.name) != names.end()) served.push_back(v);
  }
  return served;
}

}  // namespace

absl::StatusOr<std::optional<CheckpointChoice>> ChooseForCheckpoint(const std::string& model_dir,
                                                                    const HfConfig& config,
                                                                    const EngineOptions& options) {
  if (!IsAuto(options.strategy)) return std::nullopt;
  MOERT_ASSIGN_OR_RETURN(const AutoKeys keys, ParseAuto(options.strategy));
  if (keys.loss == 0 || keys.calibration.empty() || !keys.scheme.empty()) return std::nullopt;
  if (config.quantization.form != StoredWeights::kPlain) return std::nullopt;
  MOERT_ASSIGN_OR_RETURN(const Calibration calibration,
                         ReadCalibration(keys.calibration, Env::Default()));
  if (calibration.probe_tokens == 0) return std::nullopt;
  MOERT_ASSIGN_OR_RETURN(const auto versions, VersionsWithin(calibration, keys.loss));
  MOERT_ASSIGN_OR_RETURN(const auto source, MakeLayoutSource(model_dir, config.moe, versions));
  CheckpointChoice choice;
  MOERT_ASSIGN_OR_RETURN(choice.strategy, ChooseStrategy(*source, options, calibration));
  MOERT_ASSIGN_OR_RETURN(choice.versions, Served(choice.strategy.spec, versions));
  MOERT_ASSIGN_OR_RETURN(choice.method, ParseQuantMethod(calibration.method));
  return choice;
}

}  // namespace moert::cli
