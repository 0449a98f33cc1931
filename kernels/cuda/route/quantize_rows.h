// Operands other than plain bf16: see rows.h, whose LaunchPackRows calls this.
#ifndef MOERT_KERNELS_CUDA_ROUTE_QUANTIZE_ROWS_H_
#define MOERT_KERNELS_CUDA_ROUTE_QUANTIZE_ROWS_H_

#include "kernels/cuda/route/rows.h"

namespace moert::cuda {

int LaunchPackOperand(const DeviceRows& x, int operand, uint8_t* packed, int64_t stride,
                      CUstream_st* stream, const RowWeights& weights);

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_ROUTE_QUANTIZE_ROWS_H_
