// average-score(n): the expert with the lowest average router score over the last n iterations
// leaves (importance paper Sec. 5.3). All experts' scores count, chosen or not: one that nearly
// made it is likely to be used next, or to serve as a substitute. Experts the current layer still
// needs are pinned and never candidates, which is the paper's shield.
#ifndef MOERT_LIB_STORE_RESIDENCY_AVERAGE_SCORE_H_
#define MOERT_LIB_STORE_RESIDENCY_AVERAGE_SCORE_H_

#include <memory>

#include "store/residency/cache_policy.h"

namespace moert {

/// ResidencyRuleKind::kAverageScore. `entry_margin` >= 0: a prefetched expert only enters if its
/// average is higher by that share. A device refuses no prefetch, so there is no rule for that.
std::unique_ptr<CachePolicy> MakeAverageScore(const ResidencyRule& rule, double entry_margin = -1);

}  // namespace moert

#endif  // MOERT_LIB_STORE_RESIDENCY_AVERAGE_SCORE_H_
