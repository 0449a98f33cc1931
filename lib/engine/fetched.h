// Experts that Engine::Fetch pinned for a step.
#ifndef MOERT_LIB_ENGINE_FETCHED_H_
#define MOERT_LIB_ENGINE_FETCHED_H_

#include <cstdint>
#include <vector>

#include "store/acquire.h"

namespace moert {

/// One call's experts. They are unpinned when it dies.
struct Fetched {
  int layer = 0;
  Pins pins;
  std::vector<int32_t> slot_of_expert;  // [E], -1: not of this call
};

}  // namespace moert

#endif  // MOERT_LIB_ENGINE_FETCHED_H_
