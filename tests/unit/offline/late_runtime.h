// A CUDA runtime for tests of host code: "device" memory is the host's, a stream's work is done as
// late as it may, and any call may fail. The linker puts the wrappers at the end in front of the
// real calls (tests/CMakeLists.txt); one file of a program includes this.
#ifndef MOERT_TESTS_UNIT_OFFLINE_LATE_RUNTIME_H_
#define MOERT_TESTS_UNIT_OFFLINE_LATE_RUNTIME_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace moert::test {

class LateRuntime {
 public:
  /// The n-th call fails, with `lasting` all later ones too; 0: none. Pinned memory may be refused,
  /// and device memory be little.
  void Begin(int n = 0, bool lasting = false) {
    calls_ = 0;
    fails_at_ = n;
    lasting_ = lasting;
    refuses_pinning = false;
    device_bytes = INT64_MAX;
  }
  int calls() const { return calls_; }
  /// Blocks of memory, streams and events that were not given back.
  size_t left() const { return memory_.size() + streams_.size() + events_.size(); }
  void WaitForAll() {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    for (auto& [stream, queue] : queues_) queue.RunUpTo(queue.work.size());
  }

  bool refuses_pinning = false;
  int64_t device_bytes = INT64_MAX;  // free

  bool Fails() {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    ++calls_;
    return fails_at_ > 0 && (lasting_ ? calls_ >= fails_at_ : calls_ == fails_at_);
  }
  void Enqueue(void* stream, std::function<void()> work) {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    queues_[stream].work.push_back(std::move(work));
  }
  void Wait(void* stream) {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    queues_[stream].RunUpTo(queues_[stream].work.size());
  }
  void Record(void* event, void* stream) {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    events_[event] = {stream, queues_[stream].work.size()};
  }
  void Await(void* event) {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    const auto [stream, end] = events_.at(event);
    queues_[stream].RunUpTo(end);
  }
  void* Allocate(size_t bytes, bool device) {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (device && static_cast<int64_t>(bytes) > device_bytes) return nullptr;
    if (device) device_bytes -= static_cast<int64_t>(bytes);
    void* const p = std::malloc(bytes + 1);
    std::memset(p, 0xff, bytes);
    memory_[p] = device ? static_cast<int64_t>(bytes) : 0;
    return p;
  }
  void Free(void* p) {
    WaitForAll();  // as the runtime does
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    device_bytes += memory_.at(p);
    memory_.erase(p);
    std::free(p);
  }
  void* Make(bool event) {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    void* const p = std::malloc(1);
    if (event) {
      events_[p] = {nullptr, 0};
    } else {
      streams_.insert(p);
    }
    return p;
  }
  void Destroy(void* p) {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (streams_.count(p) != 0) Wait(p);
    queues_.erase(p);
    events_.erase(p);
    streams_.erase(p);
    std::free(p);
  }

 private:
  struct Queue {
    void RunUpTo(size_t end) {
      for (; done < end; ++done) std::exchange(work[done], nullptr)();
    }
    std::vector<std::function<void()>> work;  // what was done, too
    size_t done = 0;
  };

  std::recursive_mutex mutex_;
  int calls_ = 0, fails_at_ = 0;
  bool lasting_ = false;
  std::map<void*, Queue> queues_;                     // by stream
  std::map<void*, std::pair<void*, size_t>> events_;  // what is in front of the last record
  std::map<void*, int64_t> memory_;
  std::set<void*> streams_;
};

inline LateRuntime runtime;

}  // namespace moert::test

#define MOERT_LATE(name, parameters, error, work)   \
  cudaError_t __wrap_##name parameters {            \
    if (moert::test::runtime.Fails()) return error; \
    work;                                           \
    return cudaSuccess;                             \
  }

extern "C" {
MOERT_LATE(cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned), cudaErrorUnknown,
           *event = static_cast<cudaEvent_t>(moert::test::runtime.Make(true)))
MOERT_LATE(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), cudaErrorUnknown,
           moert::test::runtime.Record(event, stream))
MOERT_LATE(cudaEventSynchronize, (cudaEvent_t event), cudaErrorUnknown,
           moert::test::runtime.Await(event))
MOERT_LATE(cudaStreamCreateWithFlags, (cudaStream_t * stream, unsigned), cudaErrorUnknown,
           *stream = static_cast<cudaStream_t>(moert::test::runtime.Make(false)))
MOERT_LATE(cudaMemcpyAsync,
           (void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream),
           cudaErrorUnknown,
           moert::test::runtime.Enqueue(stream, [=] { std::memcpy(to, from, bytes); }))

// Waits even where it fails: what is late must not write into memory that is gone.
cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t stream) {
  moert::test::runtime.Wait(stream);
  return moert::test::runtime.Fails() ? cudaErrorUnknown : cudaSuccess;
}
cudaError_t __wrap_cudaMalloc(void** p, size_t bytes) {
  if (moert::test::runtime.Fails()) return cudaErrorMemoryAllocation;
  *p = moert::test::runtime.Allocate(bytes, true);
  return *p != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t __wrap_cudaHostAlloc(void** p, size_t bytes, unsigned) {
  if (moert::test::runtime.Fails() || moert::test::runtime.refuses_pinning) {
    return cudaErrorMemoryAllocation;
  }
  *p = moert::test::runtime.Allocate(bytes, false);
  return cudaSuccess;
}
cudaError_t __wrap_cudaFree(void* p) { return moert::test::runtime.Free(p), cudaSuccess; }
cudaError_t __wrap_cudaFreeHost(void* p) { return moert::test::runtime.Free(p), cudaSuccess; }
cudaError_t __wrap_cudaEventDestroy(cudaEvent_t event) {
  return moert::test::runtime.Destroy(event), cudaSuccess;
}
cudaError_t __wrap_cudaStreamDestroy(cudaStream_t stream) {
  return moert::test::runtime.Destroy(stream), cudaSuccess;
}
cudaError_t __wrap_cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}
/// The driver's calls for contexts.
cudaError_t __wrap_cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned,
                                                    unsigned long long,
                                                    cudaDriverEntryPointQueryResult* result) {
  *found = reinterpret_cast<void*>(+[](void*) { return CUDA_SUCCESS; });
  if (std::strcmp(name, "cuDevicePrimaryCtxRetain") == 0) {
    *found = reinterpret_cast<void*>(+[](CUcontext* context, CUdevice) {
      *context = reinterpret_cast<CUcontext>(&moert::test::runtime);
      return CUDA_SUCCESS;
    });
  }
  *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
}

#undef MOERT_LATE

#endif  // MOERT_TESTS_UNIT_OFFLINE_LATE_RUNTIME_H_
