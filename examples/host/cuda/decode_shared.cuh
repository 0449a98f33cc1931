// The work of one block of decode attention, and its shared memory.
#ifndef MOERT_EXAMPLES_HOST_CUDA_DECODE_SHARED_CUH_
#define MOERT_EXAMPLES_HOST_CUDA_DECODE_SHARED_CUH_

#include "host/cuda/attention_kernel.h"
#include "host/cuda/decode_found.cuh"
#include "host/cuda/first_key.cuh"
#include "host/cuda/reduce.cuh"

namespace moert::host::decode {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kRanks = 8;                          // blocks that share a piece
constexpr int kHeads = 8;                          // query heads of a block
constexpr int kBlock = 16;                         // keys of a warp at a time
constexpr int kStride = kRanks * kWarps * kBlock;  // from a warp's keys to its next
static_assert(kPieceKeys % kStride == 0);

/// The operands of a block in shared memory; it also reads keys and values from the cache.
template <int kDim>
struct Operands {
  static constexpr int kRow = kDim + 32;            // padded against bank conflicts
  __align__(16) uint16_t queries[2][kHeads][kRow];  // high and low parts
  // Keys and values of the step's own rows of the sequence, rounded as the cache is.
  __align__(16) uint16_t keys[kDecodeRows][kDim], values[kDecodeRows][kDim];
};

template <int kDim>
struct Shared {
  union {
    Operands<kDim> in;
    float mixed[kWarps][kHeads][kDim + 1];  // later: weighted sums of each warp
  };
  Found by_warp[kWarps][kHeads];
  Found found[kHeads];
  // The results of the cluster's blocks for the head that this block combines.
  float received[kRanks][kDim];
  Found received_found[kRanks];
};

/// A block's part of the work.
struct Task {
  int kv_head, first_head, heads;
  int64_t row;
  RowInput input;
  int begin, end;  // keys of the piece that the window includes
  int fresh;       // first key that is in shared memory
};

__device__ __forceinline__ Task TaskOf(const AttentionArgs& a, bool rotates) {
  Task t;
  const int per_kv = a.heads / a.kv_heads;
  const int groups = (per_kv + kHeads - 1) / kHeads;
  const int group = static_cast<int>(blockIdx.y) % groups;
  t.kv_head = static_cast<int>(blockIdx.y) / groups;
  t.first_head = t.kv_head * per_kv + group * kHeads;
  t.heads = min(kHeads, (t.kv_head + 1) * per_kv - t.first_head);
  const int piece = static_cast<int>(blockIdx.x) / kRanks;
  t.row = blockIdx.z;
  t.input = a.inputs.rows[t.row];
  t.end = t.input.position + 1;
  const int first = FirstKey(a.window, a.chunk, t.input.position);
  const int from = (first / kPieceKeys + piece) * kPieceKeys;
  t.begin = max(from, first);
  t.end = min(from + kPieceKeys, t.end);
  t.fresh = rotates ? t.input.position - t.input.before : t.input.position + 1;
  return t;
}

/// Stores a query's channel, scaled for base-2 scores, as the sum of two bf16.
template <int kDim>
__device__ __forceinline__ void PutQuery(Shared<kDim>* shared, int head, int i, float v) {
  const uint16_t high = ToBf16(v);
  shared->in.queries[0][head][i] = high;
  shared->in.queries[1][head][i] = ToBf16(v - FromBf16(high));
}

}  // namespace moert::host::decode

#endif  // MOERT_EXAMPLES_HOST_CUDA_DECODE_SHARED_CUH_
