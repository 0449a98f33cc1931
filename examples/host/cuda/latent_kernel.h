// Prepares the inputs of latent attention from its matrix products: latents and rotated keys in the
// cache, queries in two parts.
#ifndef MOERT_EXAMPLES_HOST_CUDA_LATENT_KERNEL_H_
#define MOERT_EXAMPLES_HOST_CUDA_LATENT_KERNEL_H_

#include <cstdint>

#include "host/cuda/rope_kernel.h"
#include "host/cuda/step_inputs.h"

struct CUstream_st;

namespace moert::host {

/// Channels of a cached key: the latent's, the rotated ones, zeros up to a multiple of 16.
constexpr int64_t LatentKeyDim(int64_t kv_rank, int64_t rope_dim) {
  return (kv_rank + rope_dim + 15) / 16 * 16;
}

/// One layer's sizes, and how it rotates: pairs are rope_dim / 2 apart.
struct LatentSizes {
  StepInputs inputs;
  int32_t rows = 0;
  int32_t heads = 0;
  int32_t q_rank = 0;  // 0: queries are not projected through a latent
  int32_t kv_rank = 0;
  int32_t nope_dim = 0;
  int32_t rope_dim = 0;
  int32_t key_dim = 0;  // LatentKeyDim
  int32_t layer = 0;
  float eps = 0;                       // of the latents' norms
  const float* frequencies = nullptr;  // [sets][rope_dim / 2]
  float factors[2] = {1, 1};
};

/// Normalizes the latents of queries and of keys, and rotates the remaining channels of keys.
struct LatentKeys {
  LatentSizes sizes;
  /// [rows, stride]: the queries' latent, or the queries; the key's kv_rank + rope_dim channels at
  /// `keys`.
  const float* projected = nullptr;
  int64_t stride = 0;
  int64_t keys = 0;
  const float* bias = nullptr;      // of a row, or null
  const float* q_weight = nullptr;  // [q_rank]
  const float* k_weight = nullptr;  // [kv_rank]
  uint16_t* q_latents = nullptr;    // bf16 [rows, q_rank]; keys go to the caches
};

/// Rotates the queries' last channels and rounds all channels to bf16.
struct LatentQueries {
  LatentSizes sizes;
  const float* queries = nullptr;  // [rows, stride], heads of nope_dim + rope_dim side by side
  int64_t stride = 0;
  uint16_t* nope = nullptr;  // bf16 [rows, heads, nope_dim]
  /// bf16 [rows, heads, LatentKeyDim], of which the first kv_rank channels are not written.
  uint16_t* absorbed = nullptr;
};

// A cudaError_t.
int LaunchLatentKeys(const LatentKeys& args, CUstream_st* stream);
int LaunchLatentQueries(const LatentQueries& args, CUstream_st* stream);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_LATENT_KERNEL_H_
