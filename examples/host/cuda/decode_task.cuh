// Which keys and query heads a block of decode attention takes.
#ifndef MOERT_EXAMPLES_HOST_CUDA_DECODE_TASK_CUH_
#define MOERT_EXAMPLES_HOST_CUDA_DECODE_TASK_CUH_

#include "host/cuda/attention_kernel.h"

namespace moert::host {

constexpr int kRanks = 8;  // blocks that share a piece
constexpr int kHeads = 8;  // query heads of a block

/// A block's part of the work.
struct Task {
  int kv_head, first_head, heads;
  int64_t row;
  RowInput input;
  int begin, end;  // keys: of the piece, and the window
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
  const int first = a.window > 0 && t.end > a.window ? t.end - a.window : 0;
  const int from = (first / kPieceKeys + piece) * kPieceKeys;
  t.begin = max(from, first);
  t.end = min(from + kPieceKeys, t.end);
  t.fresh = rotates ? t.input.position - t.input.before : t.input.position + 1;
  return t;
}

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_DECODE_TASK_CUH_
