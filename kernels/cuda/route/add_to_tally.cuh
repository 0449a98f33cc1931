// Atomic additions to counters whose sums no thread waits for.
#ifndef MOERT_KERNELS_CUDA_ROUTE_ADD_TO_TALLY_CUH_
#define MOERT_KERNELS_CUDA_ROUTE_ADD_TO_TALLY_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device_types.h"

namespace moert::cuda {

__device__ __forceinline__ void AddTo(uint64_t* sum, int64_t more) {
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(more));
}
/// Raises `most` to `value`, if that is more. Neither may be negative.
__device__ __forceinline__ void RaiseTo(double* most, double value) {
  atomicMax(reinterpret_cast<unsigned long long*>(most),
            static_cast<unsigned long long>(__double_as_longlong(value)));
}

/// `t` plus the slots and the mass that one call gave an expert.
__device__ __forceinline__ SelectionTally WithCall(SelectionTally t, int slots, float mass) {
  t.slots += slots;
  ++t.calls;
  t.mass += mass;
  return t;
}
/// WithCall in memory. Called by one thread.
__device__ __forceinline__ void AddCall(SelectionTally* to, int slots, float mass) {
  *to = WithCall(*to, slots, mass);
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_ROUTE_ADD_TO_TALLY_CUH_
