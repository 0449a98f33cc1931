// Products of the few rows of a decode step, fused with the operations around them in a layer: the
// norm of their input, the residual addition, the norm of the next block's input.
#ifndef MOERT_EXAMPLES_HOST_CUDA_FEW_ROWS_KERNEL_H_
#define MOERT_EXAMPLES_HOST_CUDA_FEW_ROWS_KERNEL_H_

#include <cstdint>

#include "host/cuda/norm_kernel.h"

struct CUstream_st;

namespace moert::host {

/// Most rows of one product: the columns of one tensor core operation.
constexpr int kFewRows = 8;

/// Input rows that are the root-mean-square norm of residual + delta; all fp32 [rows, in].
struct NormedRows {
  const float* residual = nullptr;
  const float* delta = nullptr;   // null, or added
  float* sum = nullptr;           // receives residual + delta if delta is given; not residual
  const float* weight = nullptr;  // [in]
  float eps = 0;
};

/// y = x W^T + bias, or y += x W^T + bias. All dense in device memory. Weights and biases must not
/// change while steps run: they are read before the preceding kernels have ended.
struct FewRowsProduct {
  const uint16_t* w = nullptr;  // bf16 [out, in]
  int32_t rows = 0;             // 1 to kFewRows
  int32_t in = 0;               // a multiple of 8
  int32_t out = 0;
  const uint16_t* x = nullptr;  // bf16 [rows, in]; null: `normed`, rounded to bf16
  NormedRows normed;
  float* y = nullptr;           // fp32 [rows, out]
  const float* bias = nullptr;  // [out], or null
  bool accumulate = false;
  /// Null, or a counter in device memory, which is zero before and after. The last block to finish
  /// then normalizes y as `then` says, whose residual is y. For one row only.
  uint32_t* ticket = nullptr;
  NormArgs then;
};

/// Whether the current device has the shared memory for rows of this width.
bool FewRowsRun(int64_t rows, int64_t in);

/// fp32 sums; the bits of a row depend on it and the matrix alone. A cudaError_t.
int LaunchFewRows(const FewRowsProduct& product, CUstream_st* stream);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_FEW_ROWS_KERNEL_H_
