// The versions of its experts that a model could be served in within an accepted loss: the
// candidates of `auto` before any of them is made.
#ifndef MOERT_OFFLINE_VERSIONS_WITHIN_H_
#define MOERT_OFFLINE_VERSIONS_WITHIN_H_

#include <vector>

#include "absl/status/statusor.h"
#include "moert/offline/calibration.h"
#include "moert/offline/pack.h"

namespace moert {

/// bf16, and the versions that the calibration predicts to lose at most the share `accepted_loss`
/// of perplexity: its uniform schemes, and the plans of the fewest bytes that lose all, half and a
/// quarter of it. Plans are called "mixed-BITS" by their stored bits. Most bytes first.
/// FailedPrecondition if the calibration has no end-to-end loss.
absl::StatusOr<std::vector<PackVersion>> VersionsWithin(const Calibration& calibration,
                                                        double accepted_loss);

}  // namespace moert

#endif  // MOERT_OFFLINE_VERSIONS_WITHIN_H_
