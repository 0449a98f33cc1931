// A dense product without cuBLAS: for the few rows of decode steps, which take as long as reading
// the weights once, and for any number of rows if that library is missing.
#ifndef MOERT_EXAMPLES_HOST_CUDA_GEMM_KERNEL_H_
#define MOERT_EXAMPLES_HOST_CUDA_GEMM_KERNEL_H_

#include <cstdint>

struct CUstream_st;

namespace moert::host {

/// y = x W^T, or y += x W^T. All dense in device memory.
struct DenseGemm {
  const uint16_t* x = nullptr;  // bf16 [rows, in]
  const uint16_t* w = nullptr;  // bf16 [out, in]
  float* y = nullptr;           // fp32 [rows, out]
  int32_t rows = 0;
  int32_t in = 0;
  int32_t out = 0;
  bool accumulate = false;
};

/// fp32 sums; the bits of a row do not depend on the others. A cudaError_t.
int LaunchDenseGemm(const DenseGemm& gemm, CUstream_st* stream);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_GEMM_KERNEL_H_
