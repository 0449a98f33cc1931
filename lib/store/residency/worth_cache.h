// WorthCache: a cache that keeps the experts which the next calls will want most, by UseEstimate.
#ifndef MOERT_LIB_STORE_RESIDENCY_WORTH_CACHE_H_
#define MOERT_LIB_STORE_RESIDENCY_WORTH_CACHE_H_

#include <memory>

#include "store/residency/cache_policy.h"

namespace moert {

/// ResidencyRuleKind::kWorth. The expert worth least leaves; what a prefetch brought, not before
/// the routing it was meant for. A prefetch that says how likely it is wanted
/// (VictimSnapshot::probability) is refused where what it saves is less than the uses that its
/// victim would have had.
std::unique_ptr<CachePolicy> MakeWorthCache(const ResidencyRule& rule);

}  // namespace moert

#endif  // MOERT_LIB_STORE_RESIDENCY_WORTH_CACHE_H_
