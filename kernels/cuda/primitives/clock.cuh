// The device's clock.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_CLOCK_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_CLOCK_CUH_

#include <cuda_runtime.h>

#include <cstdint>

namespace moert::cuda {

/// Nanoseconds of the device's global timer.
__device__ __forceinline__ uint64_t ClockNs() {
  uint64_t ns = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_CLOCK_CUH_
