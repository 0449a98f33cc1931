// The gated delta net of blocks/gated_delta_net.h on a device: a short convolution, one recurrence
// per head, a gated norm. Few rows and prompts run the same kernels, so that a row's bits do not
// depend on its step.
#ifndef MOERT_EXAMPLES_HOST_CUDA_DELTA_NET_KERNEL_H_
#define MOERT_EXAMPLES_HOST_CUDA_DELTA_NET_KERNEL_H_

#include <cstdint>

#include "host/cuda/step_inputs.h"

struct CUstream_st;

namespace moert::host {

constexpr int kMaxDeltaKeyDim = 128;

/// Size of a state: its matrices [value_heads, key_dim, value_dim], followed by the convolution's
/// last inputs [kernel - 1, channels].
struct DeltaNetStateSize {
  int64_t recurrent = 0, history = 0;  // floats
};
constexpr DeltaNetStateSize StateSizeOf(int64_t key_heads, int64_t value_heads, int64_t key_dim,
                                        int64_t value_dim, int64_t kernel) {
  return {value_heads * key_dim * value_dim,
          (kernel - 1) * (2 * key_heads * key_dim + value_heads * value_dim)};
}

/// All dense in device memory, fp32 but for `out`.
struct DeltaNetArgs {
  StepInputs inputs;
  /// [rows, stride]: queries [key_heads, key_dim], keys likewise, values [value_heads, value_dim],
  /// gates likewise, then betas and decays [value_heads].
  const float* projected = nullptr;
  int64_t stride = 0;
  const float* convolution = nullptr;  // [kernel, channels]: of queries, keys and values
  const float* rate = nullptr;         // [value_heads]
  const float* dt_bias = nullptr;      // [value_heads]
  const float* norm_weight = nullptr;  // [value_dim]
  float norm_eps = 0;
  float* convolved = nullptr;  // [rows, channels]
  float* recurred = nullptr;   // [rows, value_heads, value_dim]
  uint16_t* out = nullptr;     // bf16, likewise
  int32_t rows = 0;
  int32_t tiles = 0;  // of the step, which show where its sequences begin; 0: none, few rows
  int32_t key_heads = 0;
  int32_t value_heads = 0;
  int32_t key_dim = 0;  // at most kMaxDeltaKeyDim
  int32_t value_dim = 0;
  int32_t kernel = 0;
  int32_t layer = 0;        // index among delta nets
  DeltaNetStateSize state;  // StateSizeOf these
};

/// Reads the current states of the sequences and writes their next ones. Returns a cudaError_t.
int LaunchDeltaNet(const DeltaNetArgs& args, CUstream_st* stream);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_DELTA_NET_KERNEL_H_
