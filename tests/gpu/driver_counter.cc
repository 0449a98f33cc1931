// Preloaded into a test, counts the calls of the CUDA driver that wait for the device, and others,
// by thread, below the runtime: not the library's own count. The runtime, although linked
// statically, finds the driver through dlsym and cuGetProcAddress; both are intercepted here. Also
// takes the CPU time that the thread spends inside the waits: moert-bench, preloaded with it, tells
// what a call costs the host from what it waits for.
#include <cuda.h>
#include <dlfcn.h>
#include <time.h>

#include <atomic>
#include <cstring>
#include <initializer_list>

namespace {

enum Kind { kWaits, kLaunches, kGraphLaunches, kCopies, kKinds };
thread_local long long counts[kKinds];  // threads that serve transfers do wait, the host must not
thread_local long long waited_cpu_ns;

long long ThreadCpuNs() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

struct Hook {
  const char* name;
  Kind kind;
};
constexpr Hook kHooks[] = {
    {"cuStreamSynchronize", kWaits},
    {"cuEventSynchronize", kWaits},
    {"cuCtxSynchronize", kWaits},
    {"cuMemcpyDtoH", kWaits},
    {"cuMemcpyHtoD", kWaits},
    {"cuMemcpyDtoD", kWaits},
    {"cuMemcpy", kWaits},
    {"cuMemAlloc", kWaits},
    {"cuMemFree", kWaits},
    {"cuLaunchKernel", kLaunches},
    {"cuLaunchKernelEx", kLaunches},
    {"cuGraphLaunch", kGraphLaunches},
    {"cuMemcpyHtoDAsync", kCopies},
    {"cuMemcpyDtoHAsync", kCopies},
    {"cuMemcpyAsync", kCopies},
};
constexpr int kNumHooks = sizeof(kHooks) / sizeof(kHooks[0]);

// Arguments of driver calls are integers and pointers, at most 11 of them: passing all registers
// and five stack words on calls any of them with its own.
using Call = CUresult (*)(void*, void*, void*, void*, void*, void*, void*, void*, void*, void*,
                          void*);
std::atomic<Call> originals[kNumHooks];

template <int kHook>
CUresult Counted(void* a, void* b, void* c, void* d, void* e, void* f, void* g, void* h, void* i,
                 void* j, void* k) {
  ++counts[kHooks[kHook].kind];
  const Call original = originals[kHook].load();
  if (kHooks[kHook].kind != kWaits) return original(a, b, c, d, e, f, g, h, i, j, k);
  const long long begin = ThreadCpuNs();
  const CUresult result = original(a, b, c, d, e, f, g, h, i, j, k);
  waited_cpu_ns += ThreadCpuNs() - begin;
  return result;
}

template <int kHook>
struct Table {
  static void Fill(Call* to) {
    to[kHook] = Counted<kHook>;
    Table<kHook - 1>::Fill(to);
  }
};
template <>
struct Table<-1> {
  static void Fill(Call*) {}
};

/// The counting stand-in for a driver call that is found as `found`; `found` itself for others.
void* StandIn(const char* name, void* found) {
  static Call* const wrappers = [] {
    static Call all[kNumHooks];
    Table<kNumHooks - 1>::Fill(all);
    return all;
  }();
  if (found == nullptr) return found;
  size_t length = std::strlen(name);
  // Names come with a version or as the per-thread stream's variant.
  for (const char* suffix : {"_ptsz", "_ptds", "_v2"}) {
    const size_t n = std::strlen(suffix);
    if (length > n && std::strcmp(name + length - n, suffix) == 0) length -= n;
  }
  for (int i = 0; i < kNumHooks; ++i) {
    if (std::strlen(kHooks[i].name) != length || std::strncmp(kHooks[i].name, name, length) != 0) {
      continue;
    }
    const Call call = reinterpret_cast<Call>(found);
    Call none = nullptr;
    // The variants of a call lead to one original each only if they are the same function; the
    // second one of another address is left alone and the test sees it as uncounted.
    if (originals[i].compare_exchange_strong(none, call) || none == call) {
      return reinterpret_cast<void*>(wrappers[i]);
    }
    return found;
  }
  return found;
}

using GetProc = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
std::atomic<GetProc> real_get_proc{nullptr};

CUresult CountingGetProc(const char* symbol, void** found, int version, cuuint64_t flags,
                         CUdriverProcAddressQueryResult* result) {
  const CUresult status = real_get_proc.load()(symbol, found, version, flags, result);
  if (status == CUDA_SUCCESS && found != nullptr) {
    if (std::strcmp(symbol, "cuGetProcAddress") == 0) {
      *found = reinterpret_cast<void*>(CountingGetProc);
    } else {
      *found = StandIn(symbol, *found);
    }
  }
  return status;
}

}  // namespace

extern "C" {

/// Calls of this thread so far: 0 waits, 1 kernel launches, 2 graph launches, 3 asynchronous
/// copies; 4: nanoseconds of its CPU time inside the waits.
__attribute__((visibility("default"))) long long moert_driver_calls(int kind) {
  if (kind == kKinds) return waited_cpu_ns;
  return kind >= 0 && kind < kKinds ? counts[kind] : -1;
}

__attribute__((visibility("default"))) void* dlsym(void* handle, const char* name) noexcept {
  using Dlsym = void* (*)(void*, const char*);
  static const auto real =
      reinterpret_cast<Dlsym>(dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34")) != nullptr
          ? reinterpret_cast<Dlsym>(dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34"))
          : reinterpret_cast<Dlsym>(dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
  void* found = real(handle, name);
  if (found != nullptr && std::strcmp(name, "cuGetProcAddress_v2") == 0) {
    real_get_proc = reinterpret_cast<GetProc>(found);
    return reinterpret_cast<void*>(CountingGetProc);
  }
  return std::strncmp(name, "cu", 2) == 0 ? StandIn(name, found) : found;
}

}  // extern "C"
