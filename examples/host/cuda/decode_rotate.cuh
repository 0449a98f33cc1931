// Computes the queries, keys and values of a decode attention block from the q, k, v products.
#ifndef MOERT_EXAMPLES_HOST_CUDA_DECODE_ROTATE_CUH_
#define MOERT_EXAMPLES_HOST_CUDA_DECODE_ROTATE_CUH_

#include "host/cuda/decode_shared.cuh"
#include "host/cuda/rotate_head.cuh"

namespace moert::host::decode {

/// Holds the norm weights and the rotation, which are known before the products are ready. A warp
/// handles every kWarps-th head of the block: query heads, then the key, then the value.
template <int kDim>
struct DecodeRotation {
  static constexpr int kPairs = (kDim + 63) / 64;
  static constexpr int kTurns = (kHeads + 2 + kWarps - 1) / kWarps;
  using HeadPairs = Pairs<kPairs>;

  HeadPairs q_weight = {}, k_weight = {};
  HeadPairs rotation;  // of the sequence's first row in the step

  __device__ __forceinline__ DecodeRotation(const RopeArgs& rope, const Task& t, int rope_set)
      : rotation(RotationOf<kPairs>(rope, rope_set, t.input.position - t.input.before)) {
    const int half = rope.head_dim / 2;
    if (rope.q_weight != nullptr) q_weight.Read(half, [&](int i) { return rope.q_weight[i]; });
    if (rope.k_weight != nullptr) k_weight.Read(half, [&](int i) { return rope.k_weight[i]; });
  }

  /// Writes the keys and values of the sequence's rows in this step, up to this one, and this row's
  /// queries to shared memory. A barrier must follow.
  __device__ __forceinline__ void Run(const RopeArgs& rope, const Task& t, int rope_set,
                                      float scale, Shared<kDim>* shared) {
    const int before = t.input.before;
    HeadPairs turned = rotation;
    for (int j = 0; j < before; ++j) {
      RunRow(rope, t, turned, j, scale, shared);
      turned = RotationOf<kPairs>(rope, rope_set, t.input.position - before + j + 1);
    }
    RunRow<true>(rope, t, turned, before, scale, shared);
  }

 private:
  template <bool kQueries = false>
  __device__ __forceinline__ void RunRow(const RopeArgs& rope, const Task& t,
                                         const HeadPairs& turned, int j, float scale,
                                         Shared<kDim>* shared) const {
    const int warp = threadIdx.x / 32, half = rope.head_dim / 2;
    const int64_t width =
        static_cast<int64_t>(rope.heads + 2 * rope.kv_heads) * rope.head_dim + rope.extra;
    const float* const row = rope.qkv + (t.row - t.input.before + j) * width;
    HeadPairs x[kTurns];
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int head = warp + turn * kWarps;
      if (head >= t.heads + 2 || (head < t.heads && !kQueries)) continue;
      const float* const from = row + PlaceOf(rope, t, head);
      x[turn].Read(half, [&](int i) { return __ldcg(from + i); });
    }
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int head = warp + turn * kWarps;
      if (head >= t.heads + 2 || (head < t.heads && !kQueries)) continue;
      BiasAndClip(rope, PlaceOf(rope, t, head), &x[turn]);
      if (head == t.heads + 1) {
        x[turn].Write(
            half, [&](int i, float v) { shared->in.values[j][i] = ToBf16(v * rope.value_scale); });
        continue;
      }
      const bool key = head == t.heads;
      HeadPairs weight;
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        weight.low[p] = key ? k_weight.low[p] : q_weight.low[p];
        weight.high[p] = key ? k_weight.high[p] : q_weight.high[p];
      }
      RotatePairs(rope, (key ? rope.k_weight : rope.q_weight) != nullptr, weight, turned, &x[turn]);
      if (key) {
        x[turn].Write(half, [&](int i, float v) { shared->in.keys[j][i] = ToBf16(v); });
      } else {
        x[turn].Write(half,
                      [&](int i, float v) { PutQuery(shared, head, i, __fmul_rn(v, scale)); });
      }
    }
  }

  /// Offset of a head of the block within a row.
  static __device__ __forceinline__ int PlaceOf(const RopeArgs& rope, const Task& t, int head) {
    const int place = head < t.heads    ? t.first_head + head
                      : head == t.heads ? rope.heads + t.kv_head
                                        : rope.heads + rope.kv_heads + t.kv_head;
    return place * rope.head_dim;
  }

  static __device__ __forceinline__ void BiasAndClip(const RopeArgs& rope, int at, HeadPairs* x) {
    if (rope.bias != nullptr) {
      HeadPairs bias;
      bias.Read(rope.head_dim / 2, [&](int i) { return rope.bias[at + i]; });
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        x->low[p] += bias.low[p];
        x->high[p] += bias.high[p];
      }
    }
    if (rope.clip <= 0) return;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      x->low[p] = fminf(fmaxf(x->low[p], -rope.clip), rope.clip);
      x->high[p] = fminf(fmaxf(x->high[p], -rope.clip), rope.clip);
    }
  }
};

/// Used where queries and keys have been rotated before.
struct NoRotation {
  __device__ __forceinline__ NoRotation(const RopeArgs&, const Task&, int) {}
};

}  // namespace moert::host::decode

#endif  // MOERT_EXAMPLES_HOST_CUDA_DECODE_ROTATE_CUH_
