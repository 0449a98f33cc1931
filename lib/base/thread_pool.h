// The built-in pool (moert/thread_pool.h).
#ifndef MOERT_LIB_BASE_THREAD_POOL_H_
#define MOERT_LIB_BASE_THREAD_POOL_H_

#include "moert/thread_pool.h"

namespace moert {

/// Threads that this process may run at a time (moert/tools/machine.h), at least 1.
int UsableCpus();

}  // namespace moert

#endif  // MOERT_LIB_BASE_THREAD_POOL_H_
