// Causal grouped-query attention over keys and values in device memory, by tensor cores. Two
// kernels: for few query rows a sequence, where the keys are cut into pieces that run side by side
// (flash decoding), and for many (FlashAttention-2, arXiv 2307.08691). Softmax and all sums are
// fp32.
#ifndef MOERT_EXAMPLES_HOST_CUDA_ATTENTION_KERNEL_H_
#define MOERT_EXAMPLES_HOST_CUDA_ATTENTION_KERNEL_H_

#include <cstdint>

#include "host/cuda/rope_kernel.h"
#include "host/cuda/step_inputs.h"

struct CUstream_st;

namespace moert::host {

constexpr int kMaxHeadDim = 256;

struct AttentionArgs {
  StepInputs inputs;
  const float* queries = nullptr;  // [rows, query_stride], heads side by side, rotated
  int64_t query_stride = 0;
  uint16_t* out = nullptr;  // bf16 [rows, heads head_dim]
  int32_t rows = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;         // a multiple of 16, at most kMaxHeadDim
  int64_t channels_before = 0;  // of keys in the attention layers in front
  int32_t window = 0;           // keys a query sees, itself included; 0: all
  int32_t chunk = 0;            // it sees those of its own chunk of so many; 0: all
  /// [heads]: a score that takes its share and gives nothing; null: none.
  const float* sinks = nullptr;
};

/// Keys of one piece. A row's arithmetic depends on its position alone, never on what else is in
/// the step or how many pieces were launched.
constexpr int kPieceKeys = 2048;

/// Pieces that a query at `last_position` needs.
constexpr int PiecesFor(int64_t last_position) {
  return static_cast<int>(last_position / kPieceKeys) + 1;
}

/// Bytes of `partials` for a launch.
int64_t PartialBytes(int64_t rows, int heads, int head_dim, int pieces);

/// Decode attention that begins with the products of the q, k and v matrices: does what LaunchRope
/// does too, but for what RotatesInDecode says, and leaves `rope.qkv` as it is. args.queries is not
/// used. A sequence has at most kDecodeRows rows in the step. The stores of earlier steps in a
/// sequence's cache are read before the kernels in front have ended.
struct RotatedAttention {
  AttentionArgs args;
  RopeArgs rope;
};
constexpr bool RotatesInDecode(const RopeArgs& rope) {
  return !rope.norm_full && !rope.norm_last && rope.temperature_scale == 0;
}

/// For any number of rows of any sequences, queries rotated and caches filled. `pieces` must reach
/// the last position of the step, more are allowed. partials: PartialBytes. A cudaError_t.
int LaunchDecodeAttention(const AttentionArgs& args, int pieces, float* partials,
                          CUstream_st* stream);
int LaunchDecodeAttention(const RotatedAttention& args, int pieces, float* partials,
                          CUstream_st* stream);

/// For inputs.tiles[tiles]. A cudaError_t.
int LaunchPrefillAttention(const AttentionArgs& args, int tiles, CUstream_st* stream);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_ATTENTION_KERNEL_H_
