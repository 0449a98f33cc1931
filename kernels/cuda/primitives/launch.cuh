// Launches that may begin before the kernel in front of them has ended (programmatic dependent
// launch, sm_90 and later; an ordinary launch elsewhere). A kernel launched so calls
// GridDependencySync() before it touches what earlier kernels write or still read, and every kernel
// of a chain calls it at some point: then a kernel that ended has seen all before it end.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_LAUNCH_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <utility>

namespace moert::cuda {

/// Shared memory that every device from sm_80 on gives a CTA, bytes: sm_86, 89 and 120 give no
/// more.
constexpr int kLeastShared = 99 << 10;

/// Until the kernels in front have ended and their writes can be seen.
__device__ __forceinline__ void GridDependencySync() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// From here on the next kernel may begin; it waits for this one's end where it says so itself.
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

/// A cudaError_t.
template <typename... Params, typename... Args>
int LaunchEarly(void (*kernel)(Params...), dim3 grid, int threads, int shared_bytes,
                cudaStream_t stream, Args&&... args) {
  int major = 0;
  const cudaError_t error = FindAttribute(cudaDevAttrComputeCapabilityMajor, &major);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = major >= 9 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(std::forward<Args>(args))...);
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_LAUNCH_CUH_
