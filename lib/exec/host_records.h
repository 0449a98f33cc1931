// Records that lie in page-locked host memory from the start, where a device reads them.
#ifndef MOERT_LIB_EXEC_HOST_RECORDS_H_
#define MOERT_LIB_EXEC_HOST_RECORDS_H_

#include <cstdint>

#include "absl/types/span.h"
#include "moert/expert_source.h"

namespace moert {

/// Whether all records of `versions` do: those that the source has there, and the others within
/// `host_budget` (EngineOptions). Where that has no limit they are kept as they are read.
bool HostHoldsAll(const ExpertSource& source, absl::Span<const int> versions, int64_t host_budget);

}  // namespace moert

#endif  // MOERT_LIB_EXEC_HOST_RECORDS_H_
