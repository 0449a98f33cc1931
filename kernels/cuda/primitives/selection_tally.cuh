// Counts of what was selected.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_SELECTION_TALLY_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_SELECTION_TALLY_CUH_

#include "kernels/cuda/device_types.h"

namespace moert::cuda {

/// What one call gave an expert, by one thread.
__device__ __forceinline__ void AddCall(SelectionTally* to, int slots, float mass) {
  SelectionTally t = *to;
  t.slots += slots;
  ++t.calls;
  t.mass += mass;
  *to = t;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_SELECTION_TALLY_CUH_
