// WorthCache: a cache that keeps the experts which the next calls will want most, by UseEstimate.
#ifndef MOERT_LIB_STRATEGIES_WORTH_CACHE_H_
#define MOERT_LIB_STRATEGIES_WORTH_CACHE_H_

#include <memory>

#include "moert/policy.h"
#include "strategies/capacity.h"

namespace moert {

/// The expert worth least leaves; what a prefetch brought, not before the routing it was meant for.
/// A prefetch that says how likely it is wanted (VictimSnapshot::probability) is refused where what
/// it saves is less than the uses that its victim would have had. Layers share all slots
/// (SharedSlots).
std::unique_ptr<ResidencyPolicy> MakeSharedWorthCache();
/// The same with slots dealt to layers by `rule`.
std::unique_ptr<ResidencyPolicy> MakeWorthCache(std::unique_ptr<CapacityRule> rule);

}  // namespace moert

#endif  // MOERT_LIB_STRATEGIES_WORTH_CACHE_H_
