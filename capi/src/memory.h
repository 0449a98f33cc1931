// moert_memory and the C++ MemoryPlan.
#ifndef MOERT_CAPI_SRC_MEMORY_H_
#define MOERT_CAPI_SRC_MEMORY_H_

#include "moert.h"
#include "moert/engine.h"

namespace moert::capi {

moert_memory ToC(const MemoryPlan& plan);

}  // namespace moert::capi

#endif  // MOERT_CAPI_SRC_MEMORY_H_
