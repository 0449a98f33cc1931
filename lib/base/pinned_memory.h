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

/// Page-locks memory of the caller's for all devices, until what is returned goes. Unavailable
/// without CUDA, or what the driver refuses it with.
absl::StatusOr<std::shared_ptr<void>> LockPages(std::byte* memory, int64_t bytes);

}  // namespace moert

#endif  // MOERT_LIB_BASE_PINNED_MEMORY_H_
