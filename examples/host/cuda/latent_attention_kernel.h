// Causal attention of all heads over one latent per position, on tensor cores: absorbed queries
// against keys whose first channels are the values. Softmax and all sums are fp32.
#ifndef MOERT_EXAMPLES_HOST_CUDA_LATENT_ATTENTION_KERNEL_H_
#define MOERT_EXAMPLES_HOST_CUDA_LATENT_ATTENTION_KERNEL_H_

#include <cstdint>

#include "host/cuda/step_inputs.h"

struct CUstream_st;

namespace moert::host {

constexpr int kMaxLatentKeyDim = 576;
constexpr int kMaxLatentValueDim = 512;

struct LatentAttentionArgs {
  StepInputs inputs;
  const uint16_t* queries = nullptr;  // bf16 [rows, heads, key_dim]
  uint16_t* out = nullptr;            // bf16 [rows, heads, value_dim]
  int32_t rows = 0;
  int32_t heads = 0;
  int32_t key_dim = 0;    // a multiple of 16, at most kMaxLatentKeyDim
  int32_t value_dim = 0;  // likewise; a key's first channels
  int32_t layer = 0;
  int32_t window = 0;  // as AttentionArgs
  int32_t chunk = 0;
  float scale = 0;  // of the scores
};

/// The keys of a query are cut into at most kLatentParts parts, whose size is a power of two and
/// depends only on the query's position.
constexpr int kLatentParts = 32;
constexpr int kLatentPartKeys = 128;  // of the smallest part

/// Parts that a query at `last_position` needs, or more.
constexpr int LatentPartsFor(int64_t last_position) {
  const int64_t parts = last_position / kLatentPartKeys + 1;
  return parts < kLatentParts ? static_cast<int>(parts) : kLatentParts;
}

/// Bytes of `partials` for a launch.
int64_t LatentPartialBytes(int64_t rows, int heads, int value_dim, int parts);

/// For any number of rows of any sequences, whose caches are filled. `parts` must reach the last
/// position of the step; more are allowed. Returns a cudaError_t.
int LaunchLatentDecode(const LatentAttentionArgs& args, int parts, float* partials,
                       CUstream_st* stream);

/// For inputs.tiles[tiles]. Returns a cudaError_t.
int LaunchLatentPrefill(const LatentAttentionArgs& args, int tiles, CUstream_st* stream);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_LATENT_ATTENTION_KERNEL_H_
