// Chooses the version of its experts that a model is served in when a loss is accepted: predicts
// the loss of each version, and chooses among those that fit the budget. The strategy `auto`
// (moert/tools/auto_strategy.h) uses it. A pure function over a snapshot, for hosts that have
// offers of their own.
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

/// A strategy over certain versions that fits the budget.
struct VersionOffer {
  std::string spec = {};
  double step_ms = 0;  // expected time of a decode step of one token
  double loss = 0;     // predicted loss of perplexity, as a share; 0: none
};

struct VersionSnapshot {
  double accepted_loss = 0;  // of perplexity, as a share
  absl::Span<const VersionOffer> offers = {};
};

/// Index of the fastest offer whose loss is accepted. Among equally fast ones (that wait for
/// nothing, say) it is the one with the least loss, then the first. Nothing if no loss is accepted.
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
