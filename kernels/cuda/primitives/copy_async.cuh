// cp.async: copies from global to shared memory that run beside the arithmetic (sm_80 and later).
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_COPY_ASYNC_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_COPY_ASYNC_CUH_

#include <cstdint>

namespace moert::cuda {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// 16 bytes, both addresses multiples of 16. Through L2 only: weights are read once.
__device__ __forceinline__ void CopyAsync16(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global)
               : "memory");
}

/// Closes the group of the copies this thread began since the last call; an empty group is legal.
__device__ __forceinline__ void CopyAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most `kPending` of this thread's groups are under way.
template <int kPending>
__device__ __forceinline__ void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_COPY_ASYNC_CUH_
