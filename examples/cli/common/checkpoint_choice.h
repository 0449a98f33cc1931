// The choice of `auto` with an accepted loss for a checkpoint, before any version of its experts is
// made.
#ifndef MOERT_EXAMPLES_CLI_COMMON_CHECKPOINT_CHOICE_H_
#define MOERT_EXAMPLES_CLI_COMMON_CHECKPOINT_CHOICE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/offline/hf_config.h"
#include "moert/offline/pack.h"
#include "moert/offline/quantize.h"
#include "moert/options.h"
#include "moert/tools/auto_strategy.h"

namespace moert::cli {

struct CheckpointChoice {
  StrategyChoice strategy;
  /// Versions that the strategy serves beside the experts as stored; empty: only those.
  std::vector<PackVersion> versions;
  QuantMethod method = QuantMethod::kRtn;  // the calibration's
};

/// Nothing where there is no choice of versions: another strategy, no accepted loss, no
/// calibration with an end-to-end loss, a scheme asked for, or experts that the checkpoint has
/// quantized. Fails as ReadCalibration, VersionsWithin and ChooseStrategy.
absl::StatusOr<std::optional<CheckpointChoice>> ChooseForCheckpoint(const std::string& model_dir,
                                                                    const HfConfig& config,
                                                                    const EngineOptions& options);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_CHECKPOINT_CHOICE_H_
