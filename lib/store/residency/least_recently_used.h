// Least recently used, the default of the residency seam.
#ifndef MOERT_LIB_STORE_RESIDENCY_LEAST_RECENTLY_USED_H_
#define MOERT_LIB_STORE_RESIDENCY_LEAST_RECENTLY_USED_H_

#include <memory>

#include "store/residency/cache_policy.h"

namespace moert {

std::unique_ptr<CachePolicy> MakeLeastRecentlyUsed(const ResidencyRule& rule);

}  // namespace moert

#endif  // MOERT_LIB_STORE_RESIDENCY_LEAST_RECENTLY_USED_H_
