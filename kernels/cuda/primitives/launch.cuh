// Launches that may begin before the preceding kernel has ended (programmatic dependent launch,
// code for sm_90 and later; an ordinary launch elsewhere). A kernel launched this way calls
// GridDependencySync() before it touches memory that earlier kernels write or still read. Every
// kernel of a chain must call it at some point: then, when a kernel has ended, so have all before
// it.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_LAUNCH_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <utility>

namespace moert::cuda {

/// Shared memory that every device from sm_80 on gives a CTA, bytes: sm_86, 89 and 120 give no
/// more.
constexpr int kLeastShared = 99 << 10;

/// Waits until the preceding kernels have ended and their writes are visible.
__device__ __forceinline__ void GridDependencySync() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets the next kernel start early; that kernel waits for this one at its own
/// GridDependencySync().
__device__ __forceinline__ void TriggerDependentLaunch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// An attribute of the current device.
inline cudaError_t FindAttribute(cudaDeviceAttr attribute, int* value) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  return error != cudaSuccess ? error : cudaDeviceGetAttribute(value, attribute, device);
}

template <int kTag>
__global__ void CodeMarker() {}

/// Whether the current device runs code that was compiled for sm_90 or later. A newer device may
/// run PTX of an older one, in which GridDependencySync() does not wait.
inline bool WaitsInKernels() {
  static std::atomic<uint64_t> asked{0}, waits{0};  // a bit per device
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if ((asked.load(std::memory_order_acquire) & bit) != 0) return (waits.load() & bit) != 0;
  cudaFuncAttributes code;
  if (cudaFuncGetAttributes(&code, CodeMarker<0>) != cudaSuccess) return false;
  if (code.ptxVersion >= 90) waits.fetch_or(bit);
  asked.fetch_or(bit, std::memory_order_release);
  return code.ptxVersion >= 90;
}

/// Launches a kernel that may start early. Returns 0 or a cudaError_t.
template <typename... Params, typename... Args>
int LaunchEarly(void (*kernel)(Params...), dim3 grid, int threads, int shared_bytes,
                cudaStream_t stream, Args&&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = WaitsInKernels() ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(std::forward<Args>(args))...);
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_LAUNCH_CUH_
