// TopScorePrefetch: prefetch of the experts that are predicted to matter (importance paper
// Sec. 5.2), predicted by the next layer's gate on the input that the host derives from this
// layer's resident experts, or, where it does not offer that, on this layer's own input.
#ifndef MOERT_LIB_PREFETCH_TOP_SCORE_PREFETCH_H_
#define MOERT_LIB_PREFETCH_TOP_SCORE_PREFETCH_H_

#include <memory>

#include "moert/policy.h"

namespace moert {

/// PrefetchRuleKind::kTopScore. In decode, only experts predicted to be top-score are worth a
/// transfer: a low-score one would be replaced if it were absent. In prefill nothing is replaced:
/// every predicted active is wanted, most tokens first.
///
/// Predicted scores are ranked as they are: a selection bias or group limit of the next layer's
/// router is not applied.
std::unique_ptr<PrefetchPolicy> MakeTopScorePrefetch(const PrefetchRule& rule);

}  // namespace moert

#endif  // MOERT_LIB_PREFETCH_TOP_SCORE_PREFETCH_H_
