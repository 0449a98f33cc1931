// Gathers the rows of a MoE block for its experts, and adds the experts' results back.
#ifndef MOERT_KERNELS_CUDA_OFFLINE_BLOCK_ROWS_H_
#define MOERT_KERNELS_CUDA_OFFLINE_BLOCK_ROWS_H_

#include <cstdint>

#include "kernels/cuda/device_types.h"

struct CUstream_st;

namespace moert::cuda {

/// to[i] = from[i], bf16 bits. A cudaError_t, like those below.
int LaunchWiden(const uint16_t* from, int64_t count, float* to, CUstream_st* stream);

/// to[i] = from[rows[i] - first], of `columns` elements each.
int LaunchGatherRows(const float* from, const int32_t* rows, int64_t first, int64_t count,
                     int64_t columns, float* to, CUstream_st* stream);

/// to[rows[i] - first] += weights[i] * from[i], product and sum rounded one by one as on the CPU.
/// No row occurs twice.
int LaunchAddRows(const float* from, const int32_t* rows, const float* weights, int64_t first,
                  int64_t count, int64_t columns, float* to, CUstream_st* stream);

// Operations on an expert's rows between its products while the effects of quantizing it are
// measured (lib/offline/sensitivity.h).

/// out[i] = act(gate[i], up[i]), minus less[i] if `less` is not null. A cudaError_t.
int LaunchActivate(const DeviceActivation& activation, const float* gate, const float* up,
                   const float* less, float* out, int64_t count, CUstream_st* stream);

/// sums[r] = sum over c of rows[r, c]^2; `less`, if not null, is subtracted from rows first, in
/// place.
int LaunchSquareSums(float* rows, const float* less, int64_t count, int64_t columns, double* sums,
                     CUstream_st* stream);

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_OFFLINE_BLOCK_ROWS_H_
