// One small matrix per head, all multiplied in one launch: absorbs the keys and values of heads in
// latent attention.
#ifndef MOERT_EXAMPLES_HOST_CUDA_HEAD_PRODUCTS_KERNEL_H_
#define MOERT_EXAMPLES_HOST_CUDA_HEAD_PRODUCTS_KERNEL_H_

#include <cstdint>

struct CUstream_st;

namespace moert::host {

/// y_h = x_h W_h^T for each head h. All bf16 in device memory.
struct HeadProducts {
  const uint16_t* x = nullptr;  // [rows, heads, in]
  const uint16_t* w = nullptr;  // [heads, out, in]
  uint16_t* y = nullptr;        // [rows, heads, y_stride], of which the first `out` are written
  int64_t y_stride = 0;
  int32_t rows = 0;
  int32_t heads = 0;
  int32_t in = 0;  // a multiple of 8
  int32_t out = 0;
};

/// fp32 sums; the bits of a row do not depend on the others. A cudaError_t.
int LaunchHeadProducts(const HeadProducts& products, CUstream_st* stream);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_HEAD_PRODUCTS_KERNEL_H_
