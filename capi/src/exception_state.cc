// The place where the C++ runtime inside libmoert.so keeps the exceptions of each thread. It
// replaces the runtime's own place, a thread-local variable: in a library that a running process
// loads (Python's ctypes, plug-ins), a thread's first use of such a variable allocates memory, and
// glibc ends the process if there is none, just when an exception is to report that. Here places
// are reserved, and a thread-specific key gives each thread its own. glibc allocates memory for the
// keys beyond a thread's first 32, and a host may have used up all: a place that no key can hold is
// found by its thread.
//
// These two functions take precedence over those of libstdc++.a, which is linked into libmoert.so;
// the struct is that of the Itanium C++ ABI. The version script hides them: libstdc++.so, hosts and
// other libraries keep their own state, whatever their compiler. A runtime that is not linked in,
// such as libc++abi.so, does not see them either. The static library does not contain this file:
// its host's runtime serves it, and a program's own thread-local variables need no allocation.
//
// After fork() the child's one thread keeps its place. The places of the other threads, which do
// not exist in the child, stay taken until a thread with the same pthread_t comes. libmoert.so is
// linked with -z nodelete, so that GiveBack exists when a thread ends after dlclose().
#include <cxxabi.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>

namespace __cxxabiv1 {

struct __cxa_exception;

struct __cxa_eh_globals {  // as the ABI has it
  __cxa_exception* caughtExceptions;
  unsigned int uncaughtExceptions;
#ifdef __ARM_EABI_UNWINDER__
  __cxa_exception* propagatingExceptions;
#endif
};

namespace {

struct Place {
  __cxa_eh_globals state = {};
  std::atomic<pthread_t> owner{0};  // 0: free. No pthread_t of Linux is 0.
  bool keyed = false;               // the owner's key holds it
};

// The number of running threads that have met an exception. Further threads allocate memory.
constexpr int kReserved = 1024;
constinit Place reserved[kReserved] = {};

pthread_key_t key;
bool has_key = false;
pthread_once_t made = PTHREAD_ONCE_INIT;

// A thread that throws in a later key destructor takes a place again, and this is called again.
void GiveBack(void* state) {
  for (Place& place : reserved) {
    if (&place.state != state) continue;
    place.keyed = false;
    place.owner.store(0, std::memory_order_release);
    return;
  }
  std::free(state);
}

// The place of this thread, or a free one. Null: all are taken.
Place* Find() {
  const pthread_t self = pthread_self();
  for (Place& place : reserved) {
    if (place.owner.load(std::memory_order_acquire) != self) continue;
    // The place is held by a key, but not this thread's: its owner was ended by fork().
    if (place.keyed) place.state = {};
    return &place;
  }
  for (Place& place : reserved) {
    pthread_t none = 0;
    if (!place.owner.compare_exchange_strong(none, self, std::memory_order_acq_rel)) continue;
    place.state = {};
    return &place;
  }
  return nullptr;
}

bool Keep(__cxa_eh_globals* state) { return has_key && pthread_setspecific(key, state) == 0; }

}  // namespace

extern "C" __cxa_eh_globals* __cxa_get_globals() noexcept {
  pthread_once(&made, [] { has_key = pthread_key_create(&key, GiveBack) == 0; });
  if (void* const state = has_key ? pthread_getspecific(key) : nullptr; state != nullptr) {
    return static_cast<__cxa_eh_globals*>(state);
  }
  if (Place* const place = Find(); place != nullptr) {
    place->keyed = Keep(&place->state);
    return &place->state;
  }
  auto* const state = static_cast<__cxa_eh_globals*>(std::calloc(1, sizeof(__cxa_eh_globals)));
  // The runtime has no other place for an exception.
  if (state == nullptr || !Keep(state)) std::abort();
  return state;
}

extern "C" __cxa_eh_globals* __cxa_get_globals_fast() noexcept { return __cxa_get_globals(); }

}  // namespace __cxxabiv1
