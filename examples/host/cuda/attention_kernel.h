// Causal grouped-query attention over keys and values in device memory, on tensor cores. Two
// kernels: one for few query rows per sequence, which cuts the keys into pieces that run in
// parallel (flash decoding), and one for many (FlashAttention-2, arXiv 2307.08691). Softmax and all
// sums are fp32.
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
  int64_t channels_before = 0;  // key channels of all earlier attention layers
  int32_t window = 0;           // keys a query sees, itself included; 0: all
  int32_t chunk = 0;            // a query sees only its own chunk of so many keys; 0: all
  /// [heads]: attention sinks, scores in the softmax without a value; null: none.
  const float* sinks = nullptr;
};

/// Keys of one piece. A row's arithmetic depends only on its position, never on the other rows of
/// the step or on the number of pieces launched.
constexpr int kPieceKeys = 2048;

/// Pieces that a query at `last_position` needs.
constexpr int PiecesFor(int64_t last_position) {
  return static_cast<int>(last_position / kPieceKeys) + 1;
}

/// Bytes of `partials` for a launch.
int64_t PartialBytes(int64_t rows, int heads, int head_dim, int pieces);

/// Decode attention fused with LaunchRope: starts from `rope.qkv`, the products of the q, k and v
/// matrices, and does not change them. RotatesInDecode says whether a layer's operations are
/// supported. args.queries is not used. A sequence has at most kDecodeRows rows in the step. Keys
/// and values that earlier steps stored are read before the preceding kernels have ended.
struct RotatedAttention {
  AttentionArgs args;
  RopeArgs rope;
};
constexpr bool RotatesInDecode(const RopeArgs& rope) {
  return !rope.norm_full && !rope.norm_last && rope.temperature_scale == 0;
}

/// For any number of rows of any sequences, whose queries are rotated and caches filled. `pieces`
/// must reach the last position of the step; more are allowed. partials: PartialBytes. Returns a
/// cudaError_t.
int LaunchDecodeAttention(const AttentionArgs& args, int pieces, float* partials,
                          CUstream_st* stream);
int LaunchDecodeAttention(const RotatedAttention& args, int pieces, float* partials,
                          CUstream_st* stream);

/// For inputs.tiles[tiles]. Returns a cudaError_t.
int LaunchPrefillAttention(const AttentionArgs& args, int tiles, CUstream_st* stream);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_ATTENTION_KERNEL_H_
