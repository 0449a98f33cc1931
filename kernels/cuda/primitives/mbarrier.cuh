// An mbarrier of one arrival: one thread of a CTA announces a phase and goes on; others wait for
// it. Phases alternate in parity, beginning with 0.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_MBARRIER_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_MBARRIER_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/primitives/packing.cuh"

namespace moert::cuda {

/// Called by one thread; a barrier of the CTA must follow.
__device__ __forceinline__ void InitMbarrier(uint64_t* mbarrier) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(SharedAddress(mbarrier)) : "memory");
}
/// Waiting threads can read the earlier writes of this thread.
__device__ __forceinline__ void ArriveMbarrier(uint64_t* mbarrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(
                   SharedAddress(mbarrier))
               : "memory");
}
__device__ __forceinline__ void WaitMbarrier(uint64_t* mbarrier, int parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred done;\nmbarrier.test_wait.parity.shared.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n}"
        : "=r"(done)
        : "r"(SharedAddress(mbarrier)), "r"(parity)
        : "memory");
  }
  __syncwarp();
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_MBARRIER_CUH_
