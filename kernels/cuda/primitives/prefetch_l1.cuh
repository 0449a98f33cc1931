// Prefetches data that is needed soon into L1.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_PREFETCH_L1_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_PREFETCH_L1_CUH_

#include <cuda_runtime.h>

namespace moert::cuda {

__device__ __forceinline__ void PrefetchToL1(const void* at) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(at));
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_PREFETCH_L1_CUH_
