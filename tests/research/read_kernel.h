// A kernel that takes time: it reads device memory.
#ifndef MOERT_TESTS_RESEARCH_READ_KERNEL_H_
#define MOERT_TESTS_RESEARCH_READ_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace moert::research {

/// Reads `bytes` zeros, a multiple of 16, and stores nothing.
cudaError_t LaunchRead(const void* from, int64_t bytes, float* sink, cudaStream_t stream);

}  // namespace moert::research

#endif  // MOERT_TESTS_RESEARCH_READ_KERNEL_H_
