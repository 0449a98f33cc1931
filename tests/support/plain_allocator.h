// Memory of the C library's in place of page-locked memory.
#ifndef MOERT_TESTS_SUPPORT_PLAIN_ALLOCATOR_H_
#define MOERT_TESTS_SUPPORT_PLAIN_ALLOCATOR_H_

#include <cstdint>
#include <cstdlib>

#include "moert/allocator.h"

namespace moert::test {

class PlainAllocator final : public HostAllocator {
 public:
  void* Allocate(int64_t bytes, int64_t alignment) override {
    return std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(bytes));
  }
  void Free(void* memory, int64_t /*bytes*/) override { std::free(memory); }
};

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_PLAIN_ALLOCATOR_H_
