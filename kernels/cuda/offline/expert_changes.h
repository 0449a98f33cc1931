// Operations on an expert's rows between its products while the effects of quantizing it are
// measured (lib/offline/sensitivity.h).
#ifndef MOERT_KERNELS_CUDA_OFFLINE_EXPERT_CHANGES_H_
#define MOERT_KERNELS_CUDA_OFFLINE_EXPERT_CHANGES_H_

#include <cstdint>

#include "kernels/cuda/device_types.h"

struct CUstream_st;

namespace moert::cuda {

/// out[i] = act(gate[i], up[i]), less[i] taken off if it is not null. A cudaError_t.
int LaunchActivate(const DeviceActivation& activation, const float* gate, const float* up,
                   const float* less, float* out, int64_t count, CUstream_st* stream);

/// sums[r] = sum over c of rows[r, c]^2; `less`, if not null, is taken off rows first, in place.
int LaunchSquareSums(float* rows, const float* less, int64_t count, int64_t columns, double* sums,
                     CUstream_st* stream);

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_OFFLINE_EXPERT_CHANGES_H_
