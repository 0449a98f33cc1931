// Vectors that begin on a cache line.
#ifndef MOERT_EXAMPLES_HOST_ALIGNED_H_
#define MOERT_EXAMPLES_HOST_ALIGNED_H_

#include <cstddef>
#include <new>
#include <vector>

namespace moert::host {

template <typename T>
struct CacheLineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};

  CacheLineAllocator() = default;
  template <typename U>
  CacheLineAllocator(const CacheLineAllocator<U>&) {}

  T* allocate(size_t n) {
    if (n > static_cast<size_t>(-1) / sizeof(T)) throw std::bad_alloc();
    return static_cast<T*>(::operator new(n * sizeof(T), kAlignment));
  }
  void deallocate(T* p, size_t) { ::operator delete(p, kAlignment); }

  friend bool operator==(const CacheLineAllocator&, const CacheLineAllocator&) { return true; }
};

template <typename T>
using AlignedVector = std::vector<T, CacheLineAllocator<T>>;

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_ALIGNED_H_
