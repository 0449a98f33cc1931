// HostAllocator: the host's own memory for the expert pools (huge pages, NUMA nodes, accounting).
#ifndef MOERT_ALLOCATOR_H_
#define MOERT_ALLOCATOR_H_

#include <cstdint>

namespace moert {

/// Called under the engine's lock, one call at a time; must not call the engine.
class HostAllocator {
 public:
  virtual ~HostAllocator() = default;
  /// `bytes` of readable and writable memory at a multiple of `alignment`, or null when there is
  /// none (the engine then makes do with fewer experts).
  virtual void* Allocate(int64_t bytes, int64_t alignment) = 0;
  virtual void Free(void* memory, int64_t bytes) = 0;  // `bytes` as given to Allocate
};

}  // namespace moert

#endif  // MOERT_ALLOCATOR_H_
