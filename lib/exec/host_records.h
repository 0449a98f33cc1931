// Records that lie in page-locked host memory from the start, where a device reads them.
#ifndef MOERT_LIB_EXEC_HOST_RECORDS_H_
#define MOERT_LIB_EXEC_HOST_RECORDS_H_

#include <cstdint>

#include "absl/types/span.h"
#include "moert/source/expert_source.h"
#include "moert/tools/machine.h"

namespace moert {

/// Bytes of those that the source does not have there.
int64_t UnpinnedBytes(const ExpertSource& source, absl::Span<const int> versions);

/// The most that may be pinned: `host_budget` (EngineOptions), or, where none is given, what the
/// machine can spare less an eighth of it. None where that is unknown.
int64_t PinnedLimit(int64_t host_budget, const MemoryLimits& machine);

/// Whether all records of `versions` do: those that the source has there, and the others within
/// `host_budget`. Where none is given they are kept as they are read.
bool HostHoldsAll(const ExpertSource& source, absl::Span<const int> versions, int64_t host_budget);

}  // namespace moert

#endif  // MOERT_LIB_EXEC_HOST_RECORDS_H_
