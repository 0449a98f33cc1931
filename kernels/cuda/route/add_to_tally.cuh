// How a thread adds to what is counted, where nobody waits for the sums.
#ifndef MOERT_KERNELS_CUDA_ROUTE_ADD_TO_TALLY_CUH_
#define MOERT_KERNELS_CUDA_ROUTE_ADD_TO_TALLY_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device_types.h"

namespace moert::cuda {

__device__ __forceinline__ void AddTo(uint64_t* sum, int64_t more) {
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(more));
}
/// Numbers must not be below 0.
__device__ __forceinline__ void RaiseTo(double* most, double value) {
  atomicMax(reinterpret_cast<unsigned long long*>(most),
            static_cast<unsigned long long>(__double_as_longlong(value)));
}

/// `t` and what one call gave an expert.
__device__ __forceinline__ SelectionTally WithCall(SelectionTally t, int slots, float mass) {
  t.slots += slots;
  ++t.calls;
  t.mass += mass;
  return t;
}
/// By one thread.
__device__ __forceinline__ void AddCall(SelectionTally* to, int slots, float mass) {
  *to = WithCall(*to, slots, mass);
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_ROUTE_ADD_TO_TALLY_CUH_
