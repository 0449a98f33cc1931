// Launches that may begin before the previous kernel has ended (programmatic dependent launch, code
// for sm_90 and later; an ordinary launch elsewhere). A kernel launched this way calls
// GridDependencySync() before it touches memory that earlier kernels write or still read. Every
// kernel of a chain calls it at some point: once a kernel has ended, all kernels before it have
// ended too.
#ifndef MOERT_EXAMPLES_UTIL_LAUNCH_CUH_
#define MOERT_EXAMPLES_UTIL_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <utility>

namespace moert::gpu {

/// Waits until the previous kernels have ended and their writes are visible.
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

/// An attribute of the current device; 0 if it cannot be read.
inline int DeviceAttribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  return cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess ? value : 0;
}

template <int kTag>
__global__ void CodeMarker() {}

/// Whether blocks can be launched in clusters, and early: the current device runs code compiled for
/// sm_90 or later. A newer device may run the PTX of an older architecture, which has neither.
inline bool HasClusters() {
  static std::atomic<uint64_t> asked{0}, has{0};  // a bit a device
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if ((asked.load(std::memory_order_acquire) & bit) != 0) return (has.load() & bit) != 0;
  cudaFuncAttributes code;
  if (cudaFuncGetAttributes(&code, CodeMarker<0>) != cudaSuccess) return false;
  if (code.ptxVersion >= 90) has.fetch_or(bit);
  asked.fetch_or(bit, std::memory_order_release);
  return code.ptxVersion >= 90;
}

/// `cluster` consecutive blocks of the grid share their memory; 1: none do. Returns a cudaError_t.
template <typename... Params, typename... Args>
int LaunchClusterEarly(void (*kernel)(Params...), dim3 grid, int cluster, int threads,
                       int shared_bytes, cudaStream_t stream, Args&&... args) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = !HasClusters() ? 0 : cluster == 1 ? 1 : 2;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(std::forward<Args>(args))...);
}

/// Returns a cudaError_t.
template <typename... Params, typename... Args>
int LaunchEarly(void (*kernel)(Params...), dim3 grid, int threads, int shared_bytes,
                cudaStream_t stream, Args&&... args) {
  return LaunchClusterEarly(kernel, grid, 1, threads, shared_bytes, stream,
                            std::forward<Args>(args)...);
}

/// Loads kernels now instead of at their first launch. Returns a cudaError_t.
template <typename... Kernels>
int LoadKernels(Kernels*... kernels) {
  int error = 0;
  const auto load = [&](auto* kernel) {
    cudaFuncAttributes attributes;
    if (error == 0) error = cudaFuncGetAttributes(&attributes, kernel);
  };
  (load(kernels), ...);
  return error;
}

}  // namespace moert::gpu

#endif  // MOERT_EXAMPLES_UTIL_LAUNCH_CUH_
