// Where the C++ runtime keeps the exceptions of each thread, for the shared library, in place of
// the runtime's own: a thread-local variable. In a library that a running process loads (Python's
// ctypes, plug-ins), a thread's first use of such a variable takes memory, and glibc ends the
// process where there is none, just when an exception is to say so. Keys of threads take none.
#include <cxxabi.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>

namespace __cxxabiv1 {

struct __cxa_exception;

struct __cxa_eh_globals {  // as the ABI has it
  __cxa_exception* caughtExceptions;
  unsigned int uncaughtExceptions;
};

namespace {

// Threads that have met an exception and still run. Those beyond take memory.
constexpr int kReserved = 1024;
__cxa_eh_globals reserved[kReserved];
std::atomic<bool> taken[kReserved];

pthread_key_t key;
pthread_once_t made = PTHREAD_ONCE_INIT;

void GiveBack(void* state) {
  auto* const place = static_cast<__cxa_eh_globals*>(state);
  if (place < reserved || place >= reserved + kReserved) {
    std::free(place);
  } else {
    taken[place - reserved].store(false, std::memory_order_release);
  }
}

__cxa_eh_globals* Take() {
  for (int i = 0; i < kReserved; ++i) {
    if (taken[i].exchange(true, std::memory_order_acq_rel)) continue;
    reserved[i] = {};
    return &reserved[i];
  }
  return static_cast<__cxa_eh_globals*>(std::calloc(1, sizeof(__cxa_eh_globals)));
}

}  // namespace

extern "C" __cxa_eh_globals* __cxa_get_globals() noexcept {
  pthread_once(&made, [] {
    if (pthread_key_create(&key, GiveBack) != 0) std::abort();
  });
  void* state = pthread_getspecific(key);
  if (state == nullptr) {
    state = Take();
    // The runtime has no other place for an exception.
    if (state == nullptr || pthread_setspecific(key, state) != 0) std::abort();
  }
  return static_cast<__cxa_eh_globals*>(state);
}

extern "C" __cxa_eh_globals* __cxa_get_globals_fast() noexcept { return __cxa_get_globals(); }

}  // namespace __cxxabiv1
