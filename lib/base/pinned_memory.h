// Page-locked host memory that all devices of the process copy from.
#ifndef MOERT_LIB_BASE_PINNED_MEMORY_H_
#define MOERT_LIB_BASE_PINNED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "moert/allocator.h"

namespace moert {

/// Unavailable without CUDA.
absl::StatusOr<std::shared_ptr<HostAllocator>> MakePinnedAllocator();

/// Page-locks the caller's memory for all devices, until the returned object is destroyed.
/// Unavailable without CUDA; otherwise the driver's error if it refuses.
absl::StatusOr<std::shared_ptr<void>> LockPages(std::byte* memory, int64_t bytes);

}  // namespace moert

#endif  // MOERT_LIB_BASE_PINNED_MEMORY_H_
