// Root-mean-square and layer normalization on the device.
#ifndef MOERT_EXAMPLES_HOST_CUDA_NORM_KERNEL_H_
#define MOERT_EXAMPLES_HOST_CUDA_NORM_KERNEL_H_

#include <cstdint>

struct CUstream_st;

namespace moert::host {

/// All dense [rows, width] in device memory, fp32 but for `bf16`.
struct NormArgs {
  float* residual = nullptr;     // the input
  const float* delta = nullptr;  // null, or added to residual first, in place
  const float* weight = nullptr;
  const float* bias = nullptr;  // a layer normalization; null: root mean square
  float eps = 0;
  int32_t rows = 0;
  int32_t width = 0;
  float* f32 = nullptr;  // the results, in one or both types
  uint16_t* bf16 = nullptr;
};

/// A cudaError_t.
int LaunchNorm(const NormArgs& args, CUstream_st* stream);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_NORM_KERNEL_H_
