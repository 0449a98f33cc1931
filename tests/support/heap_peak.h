// The most heap that was in use since a moment, and a heap that runs out: counts every new and
// delete of the program that includes this, which is one file.
#ifndef MOERT_TESTS_SUPPORT_HEAP_PEAK_H_
#define MOERT_TESTS_SUPPORT_HEAP_PEAK_H_

#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace moert::test::heap {

inline std::atomic<int64_t> held{0}, peak{0};
inline thread_local int64_t left = -1;  // allocations until one fails; negative: none does

inline void* TryTake(std::size_t n) {
  if (left >= 0 && left-- == 0) return nullptr;
  void* p = std::malloc(n == 0 ? 1 : n);
  if (p == nullptr) return nullptr;
  const int64_t now = held += static_cast<int64_t>(malloc_usable_size(p));
  int64_t most = peak;
  while (now > most && !peak.compare_exchange_weak(most, now)) {
  }
  return p;
}
inline void* Take(std::size_t n) {
  void* p = TryTake(n);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
inline void Give(void* p) {
  if (p == nullptr) return;
  held -= static_cast<int64_t>(malloc_usable_size(p));
  std::free(p);
}

}  // namespace moert::test::heap

namespace moert::test {

/// From its making on; one at a time.
class HeapPeak {
 public:
  HeapPeak() : before_(heap::held) { heap::peak = before_; }
  int64_t bytes() const { return heap::peak - before_; }

 private:
  const int64_t before_;
};

/// The allocation behind the next `n` of this thread fails, while this is alive.
class HeapFailure {
 public:
  explicit HeapFailure(int64_t n) { heap::left = n; }
  ~HeapFailure() { heap::left = -1; }
  /// Whether it has failed.
  bool happened() const { return heap::left < 0; }
};

}  // namespace moert::test

void* operator new(std::size_t n) { return moert::test::heap::Take(n); }
void* operator new[](std::size_t n) { return moert::test::heap::Take(n); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  return moert::test::heap::TryTake(n);
}
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept {
  return moert::test::heap::TryTake(n);
}
void operator delete(void* p) noexcept { moert::test::heap::Give(p); }
void operator delete[](void* p) noexcept { moert::test::heap::Give(p); }
void operator delete(void* p, std::size_t) noexcept { moert::test::heap::Give(p); }
void operator delete[](void* p, std::size_t) noexcept { moert::test::heap::Give(p); }

#endif  // MOERT_TESTS_SUPPORT_HEAP_PEAK_H_
