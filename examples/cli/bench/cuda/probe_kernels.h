// The kernels that the probe times.
#ifndef MOERT_EXAMPLES_CLI_BENCH_CUDA_PROBE_KERNELS_H_
#define MOERT_EXAMPLES_CLI_BENCH_CUDA_PROBE_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace moert::cli {

cudaError_t LaunchEmpty(cudaStream_t stream);
/// Reads all of `data`; `out` is a word of device memory.
cudaError_t LaunchRead(const void* data, int64_t bytes, void* out, cudaStream_t stream);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_BENCH_CUDA_PROBE_KERNELS_H_
