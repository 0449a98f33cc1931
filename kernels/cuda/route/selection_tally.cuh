// Counts of what was selected.
#ifndef MOERT_KERNELS_CUDA_ROUTE_SELECTION_TALLY_CUH_
#define MOERT_KERNELS_CUDA_ROUTE_SELECTION_TALLY_CUH_

#include "kernels/cuda/device_types.h"

namespace moert::cuda {

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

#endif  // MOERT_KERNELS_CUDA_ROUTE_SELECTION_TALLY_CUH_
