// Turns the products of the q, k and v matrices into rotated queries and KV cache entries.
#ifndef MOERT_EXAMPLES_HOST_CUDA_ROPE_KERNEL_H_
#define MOERT_EXAMPLES_HOST_CUDA_ROPE_KERNEL_H_

#include <cstdint>

#include "host/cuda/step_inputs.h"

struct CUstream_st;

namespace moert::host {

constexpr int kMaxRotations = 128;  // half the largest head_dim

/// The operations of one layer on its queries, keys and values, in this order: bias, normalization
/// over all heads, clipping, normalization of each head, rotation, temperature. A rotation's pairs
/// are half a head apart, whatever they are in the checkpoint: matrices are loaded in such an
/// order.
struct RopeArgs {
  StepInputs inputs;
  float* qkv = nullptr;  // [rows, (heads + 2 kv_heads) head_dim + extra]; queries change in place
  int32_t extra = 0;     // floats of a row after the values: gates
  const float* bias = nullptr;      // of a row, or null
  const float* q_weight = nullptr;  // RMS norm: [head_dim], or [heads head_dim] if norm_full
  const float* k_weight = nullptr;  // likewise; both null: none
  bool norm_full = false;
  bool norm_last = false;  // norm of each head after the rotation
  float norm_eps = 0;
  float clip = 0;                      // 0: none
  const float* frequencies = nullptr;  // [sets][head_dim / 2]
  float factors[2] = {1, 1};           // scale of cosine and sine, by set
  int32_t rotated = kMaxRotations;     // rotated pairs of a head; the pairs after them stay
  /// A query at position p is multiplied by 1 + scale ln(1 + floor((p + 1) / floor)). 0: it is not.
  float temperature_scale = 0;
  float temperature_floor = 1;
  int32_t rows = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  float value_scale = 1;        // applied to values when they are stored
  int64_t channels_before = 0;  // key channels of all earlier attention layers
};

/// A cudaError_t. Keys and values go to the sequences' caches, rounded to bf16.
int LaunchRope(const RopeArgs& args, CUstream_st* stream);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_ROPE_KERNEL_H_
