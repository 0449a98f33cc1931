// Page-locked host memory that all devices of the process copy from.
#ifndef MOERT_LIB_EXEC_PINNED_MEMORY_H_
#define MOERT_LIB_EXEC_PINNED_MEMORY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "moert/allocator.h"

namespace moert {

/// Unavailable without CUDA.
absl::StatusOr<std::shared_ptr<HostAllocator>> MakePinnedAllocator();

}  // namespace moert

#endif  // MOERT_LIB_EXEC_PINNED_MEMORY_H_
