// Bytes that a CPU executor's calls take beside the expert pools.
#ifndef MOERT_LIB_EXEC_CPU_CPU_WORKSPACE_H_
#define MOERT_LIB_EXEC_CPU_CPU_WORKSPACE_H_

#include <cstdint>

#include "exec/backend.h"

namespace moert {

/// `io_threads` read records into scratch memory of the source.
int64_t CpuWorkspaceBytes(const ExecutorSize& size, int io_threads);

}  // namespace moert

#endif  // MOERT_LIB_EXEC_CPU_CPU_WORKSPACE_H_
