// The gate on the output of attention, where a model has one.
#ifndef MOERT_EXAMPLES_HOST_CUDA_OUTPUT_GATE_KERNEL_H_
#define MOERT_EXAMPLES_HOST_CUDA_OUTPUT_GATE_KERNEL_H_

#include <cstdint>

struct CUstream_st;

namespace moert::host {

/// mixed *= sigmoid(gates + bias), in device memory.
struct OutputGate {
  uint16_t* mixed = nullptr;     // bf16 [rows, width]
  const float* gates = nullptr;  // [rows, stride], of which the first `width` count
  int64_t stride = 0;
  const float* bias = nullptr;  // [width], or null
  int32_t rows = 0;
  int32_t width = 0;
};

/// A cudaError_t.
int LaunchOutputGate(const OutputGate& args, CUstream_st* stream);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_OUTPUT_GATE_KERNEL_H_
