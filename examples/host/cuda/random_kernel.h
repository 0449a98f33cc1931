// Random weights made on the device, for measurements.
#ifndef MOERT_EXAMPLES_HOST_CUDA_RANDOM_KERNEL_H_
#define MOERT_EXAMPLES_HOST_CUDA_RANDOM_KERNEL_H_

#include <cstdint>

struct CUstream_st;

namespace moert::host {

/// values[count], bf16: uniform in (-limit, limit), the same for a seed. A cudaError_t.
int LaunchRandom(uint16_t* values, int64_t count, float limit, uint64_t seed, CUstream_st* stream);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_RANDOM_KERNEL_H_
