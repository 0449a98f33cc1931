#include "cuda_fault.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstring>

namespace moert::test {
namespace {

std::atomic<int> armed{-1};
std::atomic<bool> lasts{false};
std::atomic<long> nth{0}, calls{0}, failed{0};

thread_local int own = 0;

bool Fails(CudaFault kind) {
  if (own > 0) return false;
  const int now = armed.load();
  if (now != static_cast<int>(kind) && now != static_cast<int>(CudaFault::kAny)) return false;
  const long call = ++calls;
  if (lasts ? call < nth : call != nth) return false;
  ++failed;
  return true;
}

}  // namespace

const char* CudaFaultName(CudaFault kind) {
  static const char* const names[] = {"allocate", "copy",   "event",  "launch",
                                      "stream",   "device", "driver", "any"};
  return names[static_cast<int>(kind)];
}

void ArmCudaFault(CudaFault kind, long n, bool lasting) {
  armed = -1;
  calls = failed = 0;
  nth = n;
  lasts = lasting;
  armed = static_cast<int>(kind);
}

TestsOwnCalls::TestsOwnCalls() { ++own; }
TestsOwnCalls::~TestsOwnCalls() { --own; }
EnginesCalls::EnginesCalls() : outside_(own) { own = 0; }
EnginesCalls::~EnginesCalls() { own = outside_; }

long DisarmCudaFault() {
  armed = -1;
  return failed;
}

namespace {

// Driver calls that take memory or contexts. Their arguments are integers and pointers, six at
// most: passing as many calls any of them with its own.
constexpr const char* kDriverCalls[] = {"cuCtxPushCurrent",
                                        "cuDevicePrimaryCtxRetain",
                                        "cuMemAddressReserve",
                                        "cuMemCreate",
                                        "cuMemMap",
                                        "cuMemSetAccess"};
constexpr int kNumDriverCalls = sizeof(kDriverCalls) / sizeof(kDriverCalls[0]);
using DriverCall = CUresult (*)(void*, void*, void*, void*, void*, void*);
std::atomic<DriverCall> driver[kNumDriverCalls];

template <int kCall>
CUresult Failing(void* a, void* b, void* c, void* d, void* e, void* f) {
  return Fails(CudaFault::kDriver) ? CUDA_ERROR_OUT_OF_MEMORY
                                   : driver[kCall].load()(a, b, c, d, e, f);
}
constexpr DriverCall kFailing[kNumDriverCalls] = {Failing<0>, Failing<1>, Failing<2>,
                                                  Failing<3>, Failing<4>, Failing<5>};

}  // namespace
}  // namespace moert::test

using moert::test::CudaFault;

extern "C" {

#define MOERT_WRAP(kind, error, name, parameters, arguments) \
  cudaError_t __real_##name parameters;                      \
  cudaError_t __wrap_##name parameters {                     \
    if (moert::test::Fails(CudaFault::kind)) return error;   \
    return __real_##name arguments;                          \
  }

MOERT_WRAP(kAllocate, cudaErrorMemoryAllocation, cudaMalloc, (void** p, size_t n), (p, n))
MOERT_WRAP(kAllocate, cudaErrorMemoryAllocation, cudaHostRegister,
           (void* memory, size_t bytes, unsigned flags), (memory, bytes, flags))
MOERT_WRAP(kAllocate, cudaErrorMemoryAllocation, cudaHostAlloc,
           (void** p, size_t n, unsigned flags), (p, n, flags))
MOERT_WRAP(kCopy, cudaErrorUnknown, cudaMemcpyAsync,
           (void* to, const void* from, size_t n, cudaMemcpyKind kind, cudaStream_t stream),
           (to, from, n, kind, stream))
MOERT_WRAP(kCopy, cudaErrorUnknown, cudaMemcpyPeerAsync,
           (void* to, int to_device, const void* from, int from_device, size_t n,
            cudaStream_t stream),
           (to, to_device, from, from_device, n, stream))
MOERT_WRAP(kCopy, cudaErrorUnknown, cudaMemcpy2DAsync,
           (void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
            size_t height, cudaMemcpyKind kind, cudaStream_t stream),
           (to, to_pitch, from, from_pitch, width, height, kind, stream))
#if CUDART_VERSION >= 13000
MOERT_WRAP(kCopy, cudaErrorUnknown, cudaMemcpyBatchAsync,
           (void* const* to, const void* const* from, const size_t* n, size_t count,
            cudaMemcpyAttributes* attributes, size_t* first, size_t kinds, cudaStream_t stream),
           (to, from, n, count, attributes, first, kinds, stream))
#elif CUDART_VERSION >= 12080
MOERT_WRAP(kCopy, cudaErrorUnknown, cudaMemcpyBatchAsync,
           (void** to, void** from, size_t* n, size_t count, cudaMemcpyAttributes* attributes,
            size_t* first, size_t kinds, size_t* failed, cudaStream_t stream),
           (to, from, n, count, attributes, first, kinds, failed, stream))
#endif
MOERT_WRAP(kCopy, cudaErrorUnknown, cudaMemsetAsync,
           (void* to, int value, size_t n, cudaStream_t stream), (to, value, n, stream))
MOERT_WRAP(kEvent, cudaErrorUnknown, cudaEventCreateWithFlags,
           (cudaEvent_t * event, unsigned flags), (event, flags))
MOERT_WRAP(kEvent, cudaErrorUnknown, cudaEventRecord, (cudaEvent_t event, cudaStream_t stream),
           (event, stream))
MOERT_WRAP(kEvent, cudaErrorUnknown, cudaEventSynchronize, (cudaEvent_t event), (event))
MOERT_WRAP(kEvent, cudaErrorUnknown, cudaStreamWaitEvent,
           (cudaStream_t stream, cudaEvent_t event, unsigned flags), (stream, event, flags))
MOERT_WRAP(kLaunch, cudaErrorLaunchOutOfResources, cudaLaunchKernelExC,
           (const cudaLaunchConfig_t* config, const void* kernel, void** arguments),
           (config, kernel, arguments))
MOERT_WRAP(kLaunch, cudaErrorMemoryAllocation, cudaGraphAddKernelNode,
           (cudaGraphNode_t * node, cudaGraph_t graph, const cudaGraphNode_t* behind, size_t count,
            const cudaKernelNodeParams* launch),
           (node, graph, behind, count, launch))
MOERT_WRAP(kLaunch, cudaErrorUnknown, cudaGraphKernelNodeSetAttribute,
           (cudaGraphNode_t node, cudaLaunchAttributeID attribute,
            const cudaLaunchAttributeValue* value),
           (node, attribute, value))
MOERT_WRAP(kLaunch, cudaErrorUnknown, cudaFuncGetAttributes,
           (cudaFuncAttributes * attributes, const void* kernel), (attributes, kernel))
MOERT_WRAP(kLaunch, cudaErrorUnknown, cudaFuncSetAttribute,
           (const void* kernel, cudaFuncAttribute attribute, int value), (kernel, attribute, value))
MOERT_WRAP(kLaunch, cudaErrorUnknown, cudaOccupancyMaxActiveBlocksPerMultiprocessor,
           (int* blocks, const void* kernel, int threads, size_t shared),
           (blocks, kernel, threads, shared))
MOERT_WRAP(kStream, cudaErrorMemoryAllocation, cudaStreamCreateWithFlags,
           (cudaStream_t * stream, unsigned flags), (stream, flags))
MOERT_WRAP(kStream, cudaErrorMemoryAllocation, cudaStreamCreateWithPriority,
           (cudaStream_t * stream, unsigned flags, int priority), (stream, flags, priority))
MOERT_WRAP(kStream, cudaErrorUnknown, cudaStreamIsCapturing,
           (cudaStream_t stream, cudaStreamCaptureStatus* status), (stream, status))
MOERT_WRAP(kStream, cudaErrorUnknown, cudaStreamSynchronize, (cudaStream_t stream), (stream))
#if CUDART_VERSION >= 13000
MOERT_WRAP(kStream, cudaErrorUnknown, cudaStreamGetCaptureInfo,
           (cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
            cudaGraph_t* graph, const cudaGraphNode_t** behind, const cudaGraphEdgeData** edges,
            size_t* count),
           (stream, status, id, graph, behind, edges, count))
MOERT_WRAP(kStream, cudaErrorUnknown, cudaStreamUpdateCaptureDependencies,
           (cudaStream_t stream, cudaGraphNode_t* nodes, const cudaGraphEdgeData* edges,
            size_t count, unsigned flags),
           (stream, nodes, edges, count, flags))
#else
MOERT_WRAP(kStream, cudaErrorUnknown, cudaStreamGetCaptureInfo,
           (cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
            cudaGraph_t* graph, const cudaGraphNode_t** behind, size_t* count),
           (stream, status, id, graph, behind, count))
MOERT_WRAP(kStream, cudaErrorUnknown, cudaStreamUpdateCaptureDependencies,
           (cudaStream_t stream, cudaGraphNode_t* nodes, size_t count, unsigned flags),
           (stream, nodes, count, flags))
#endif
MOERT_WRAP(kDevice, cudaErrorUnknown, cudaDeviceGetAttribute,
           (int* value, cudaDeviceAttr attribute, int device), (value, attribute, device))
MOERT_WRAP(kDevice, cudaErrorUnknown, cudaDeviceGetStreamPriorityRange, (int* least, int* greatest),
           (least, greatest))
MOERT_WRAP(kDevice, cudaErrorUnknown, cudaDeviceSynchronize, (), ())
MOERT_WRAP(kDevice, cudaErrorUnknown, cudaGetDevice, (int* device), (device))
MOERT_WRAP(kDevice, cudaErrorUnknown, cudaDeviceCanAccessPeer, (int* can, int device, int peer),
           (can, device, peer))
MOERT_WRAP(kDevice, cudaErrorNoDevice, cudaGetDeviceCount, (int* count), (count))
MOERT_WRAP(kDevice, cudaErrorUnknown, cudaPointerGetAttributes,
           (cudaPointerAttributes * attributes, const void* p), (attributes, p))

cudaError_t __real_cudaGetDriverEntryPointByVersion(const char* name, void** found,
                                                    unsigned version, unsigned long long flags,
                                                    cudaDriverEntryPointQueryResult* result);
cudaError_t __wrap_cudaGetDriverEntryPointByVersion(const char* name, void** found,
                                                    unsigned version, unsigned long long flags,
                                                    cudaDriverEntryPointQueryResult* result) {
  const cudaError_t error =
      __real_cudaGetDriverEntryPointByVersion(name, found, version, flags, result);
  if (error != cudaSuccess || *found == nullptr) return error;
  for (int i = 0; i < moert::test::kNumDriverCalls; ++i) {
    if (std::strcmp(name, moert::test::kDriverCalls[i]) != 0) continue;
    moert::test::driver[i] = reinterpret_cast<moert::test::DriverCall>(*found);
    *found = reinterpret_cast<void*>(moert::test::kFailing[i]);
  }
  return error;
}

}  // extern "C"
