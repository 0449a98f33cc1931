// Least recently used, uniform capacity: what a null residency policy means.
#ifndef MOERT_LIB_STORE_LRU_H_
#define MOERT_LIB_STORE_LRU_H_

#include <memory>

#include "moert/policy.h"

namespace moert {

std::unique_ptr<ResidencyPolicy> MakeLru();

}  // namespace moert

#endif  // MOERT_LIB_STORE_LRU_H_
