// Which version of its experts a model is served in where a loss is accepted: what each version is
// predicted to lose, and the choice among what the budget holds. `auto` asks it
// (moert/tools/auto_strategy.h); a pure function over a snapshot, for hosts that have offers of
// their own.
#ifndef MOERT_TOOLS_VERSION_CHOICE_H_
#define MOERT_TOOLS_VERSION_CHOICE_H_

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/offline/calibration.h"
#include "moert/source/expert_source.h"

namespace moert {

/// A strategy over certain versions, which the budget holds.
struct VersionOffer {
  std::string spec = {};
  double step_ms = 0;  // that a decode step of one token is expected to take
  double loss = 0;     // of perplexity, as a share, that is predicted; 0: nothing
};

struct VersionSnapshot {
  double accepted_loss = 0;  // of perplexity, as a share
  absl::Span<const VersionOffer> offers = {};
};

/// Index of the fastest offer whose loss is accepted; of those as fast (that wait for nothing, say)
/// the one that loses least, the first of equals. Nothing where no loss is accepted.
std::optional<size_t> ChooseVersion(const VersionSnapshot& snapshot);

/// The share of perplexity that a model is predicted to lose with all experts in a version of
/// `source`: the sum of what each linear block loses in its scheme, as `moert-pack calibrate`
/// measured it end to end. That sum is mostly an upper estimate. bf16 loses nothing. NotFound:
/// not measured, because the calibration has no end-to-end loss or not this scheme.
/// InvalidArgument: it is of another model.
absl::StatusOr<double> PredictVersionLoss(const Calibration& calibration,
                                          const ExpertSource& source, int version);

}  // namespace moert

#endif  // MOERT_TOOLS_VERSION_CHOICE_H_
