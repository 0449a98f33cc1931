// FlashAttention-2: a block takes 64 query rows of one head, each of its warps 16 of them, and
// loops over the keys in tiles; scores and probabilities never leave registers.
#include "host/cuda/attention_kernel.h"
#include "host/cuda/decode_found.cuh"
#include "host/cuda/first_key.cuh"
#include "host/cuda/mma.cuh"
#include "host/cuda/reduce.cuh"
#include "util/launch.cuh"

namespace moert::host {
namespace {

using gpu::GridDependencySync;
using gpu::LaunchEarly;
using gpu::TriggerDependentLaunch;

constexpr int kThreads = 128;
static_assert(QueryTile::kRows == kThreads / 32 * 16);

/// Loads keys and values from `from` on; zeros from `end` on.
template <int kDim, int kKeys, int kStride>
__device__ __forceinline__ void LoadKeys(const SequenceCache& cache, int64_t base, int dim,
                                         int from, int end, uint16_t (&keys)[kKeys][kStride],
                                         uint16_t (&values)[kKeys][kStride]) {
  __syncthreads();
  for (int i = threadIdx.x; i < kKeys * (kDim / 8); i += kThreads) {
    const int key = i / (kDim / 8), d = i % (kDim / 8) * 8;
    uint4 k = make_uint4(0, 0, 0, 0), v = k;
    if (from + key < end && d < dim) {
      const int64_t at = base + static_cast<int64_t>(from + key) * dim + d;
      k = *reinterpret_cast<const uint4*>(cache.keys + at);
      v = *reinterpret_cast<const uint4*>(cache.values + at);
    }
    *reinterpret_cast<uint4*>(&keys[key][d]) = k;
    *reinterpret_cast<uint4*>(&values[key][d]) = v;
  }
  __syncthreads();
}

template <int kDim, int kKeys, int kStride>
__device__ __forceinline__ void Score(const uint32_t (&q)[kDim / 16][4],
                                      const uint16_t (&keys)[kKeys][kStride], int group, int pair,
                                      float (&score)[kKeys / 8][4]) {
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const uint16_t* at = &keys[n * 8 + group][k * 16 + pair];
      Multiply(score[n], q[k], *reinterpret_cast<const uint32_t*>(at),
               *reinterpret_cast<const uint32_t*>(at + 8));
    }
  }
}

/// Scales the scores; -infinity where a row does not see the key. now: receives the highest so far.
template <int kScores>
__device__ __forceinline__ void Mask(int from, int first, const int (&rows)[2], int pair,
                                     const int (&lowest)[2], float scale,
                                     float (&score)[kScores][4], float (&now)[2]) {
#pragma unroll
  for (int n = 0; n < kScores; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int position = first + rows[i >> 1];
      const int key = from + n * 8 + pair + (i & 1);
      const bool seen = key <= position && key >= lowest[i >> 1];
      score[n][i] = seen ? score[n][i] * scale : -INFINITY;
      now[i >> 1] = fmaxf(now[i >> 1], score[n][i]);
    }
  }
}

/// Raises the highest scores to those of a tile and rescales the sums so far.
__device__ __forceinline__ void Raise(float (&now)[2], float (&highest)[2], float (&sum)[2],
                                      float (&shrink)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    now[r] = fmaxf(now[r], __shfl_xor_sync(0xffffffffu, now[r], 1));
    now[r] = fmaxf(now[r], __shfl_xor_sync(0xffffffffu, now[r], 2));
    // A row that has seen no key yet: nothing to shrink, and no difference of infinities.
    shrink[r] = highest[r] == -INFINITY ? 0.0f : exp2f(highest[r] - now[r]);
    highest[r] = now[r];
    sum[r] *= shrink[r];
    if (now[r] == -INFINITY) now[r] = 0;
  }
}

template <int kOut>
__device__ __forceinline__ void Shrink(const float (&shrink)[2], float (&out)[kOut][4]) {
#pragma unroll
  for (int d = 0; d < kOut; ++d) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[d][i] *= shrink[i >> 1];
  }
}

/// Turns scores into probabilities relative to the highest score so far.
template <int kScores>
__device__ __forceinline__ void Weigh(const float (&now)[2], float (&sum)[2],
                                      float (&score)[kScores][4]) {
#pragma unroll
  for (int n = 0; n < kScores; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      score[n][i] = exp2f(score[n][i] - now[i >> 1]);
      sum[i >> 1] += score[n][i];
    }
  }
}

/// Stores half `r` of the fragments, divided by the row's sum.
template <int kOut>
__device__ __forceinline__ void StoreRow(const float (&out)[kOut][4], int r, float sum, int dim,
                                         int pair, uint16_t* to) {
#pragma unroll
  for (int d = 0; d < kOut; ++d) {
    if (d * 8 + pair < dim) {
      *reinterpret_cast<uint32_t*>(to + d * 8 + pair) =
          ToBf16Pair(out[d][2 * r] / sum, out[d][2 * r + 1] / sum);
    }
  }
}

/// Adds 16 values, weighted by the probabilities `p`.
template <int kOut>
__device__ __forceinline__ void AddValues(const uint16_t* values, const uint32_t (&p)[4],
                                          float (&out)[kOut][4]) {
#pragma unroll
  for (int d = 0; d < kOut; ++d) {
    uint32_t b0, b1;
    LoadTransposed(values + d * 8, &b0, &b1);
    Multiply(out[d], p, b0, b1);
  }
}

/// The probabilities of 16 keys, as the operand that multiplies their values.
template <int kScores>
__device__ __forceinline__ void Probabilities(const float (&score)[kScores][4], int k,
                                              uint32_t (&p)[4]) {
  p[0] = ToBf16Pair(score[2 * k][0], score[2 * k][1]);
  p[1] = ToBf16Pair(score[2 * k][2], score[2 * k][3]);
  p[2] = ToBf16Pair(score[2 * k + 1][0], score[2 * k + 1][1]);
  p[3] = ToBf16Pair(score[2 * k + 1][2], score[2 * k + 1][3]);
}

/// Adds up the values of the four lanes that share a row.
__device__ __forceinline__ void QuadSum(float& sum) {
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
}

/// kDim: head_dim rounded up to what is instantiated; channels beyond it are zeros.
template <int kDim, int kKeys>
__global__ void __launch_bounds__(kThreads) PrefillKernel(const __grid_constant__ AttentionArgs a) {
  constexpr int kStride = kDim + 8;  // padded against bank conflicts
  __shared__ __align__(16) uint16_t keys[kKeys][kStride];
  __shared__ __align__(16) uint16_t values[kKeys][kStride];
  TriggerDependentLaunch();
  GridDependencySync();
  const int dim = a.head_dim;
  const int head = blockIdx.x, kv_head = head / (a.heads / a.kv_heads);
  const QueryTile tile = a.inputs.tiles[blockIdx.y];
  const RowInput first = a.inputs.rows[tile.first_row];
  const SequenceCache cache = a.inputs.sequences[first.sequence];
  const int64_t base = (a.channels_before + kv_head * dim) * cache.capacity;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, pair = lane % 4 * 2;
  const int rows[2] = {warp * 16 + group, warp * 16 + group + 8};  // of queries in the tile
  uint32_t q[kDim / 16][4];
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = rows[i & 1], d = k * 16 + pair + (i >> 1) * 8;
      float2 v = make_float2(0, 0);
      if (row < tile.rows && d < dim) {
        v = *reinterpret_cast<const float2*>(a.queries + (tile.first_row + row) * a.query_stride +
                                             head * dim + d);
      }
      q[k][i] = ToBf16Pair(v.x, v.y);
    }
  }
  const float scale = rsqrtf(static_cast<float>(dim)) * 1.44269504f;
  float highest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, out[kDim / 8][4] = {};
  const int end = first.position + tile.rows;
  const int begin = FirstKey(a.window, a.chunk, first.position);
  const int lowest[2] = {FirstKey(a.window, a.chunk, first.position + rows[0]),
                         FirstKey(a.window, a.chunk, first.position + rows[1])};
  for (int from = begin / kKeys * kKeys; from < end; from += kKeys) {
    LoadKeys<kDim>(cache, base, dim, from, end, keys, values);
    float score[kKeys / 8][4] = {};
    Score<kDim>(q, keys, group, pair, score);
    float now[2] = {highest[0], highest[1]}, shrink[2];
    Mask(from, first.position, rows, pair, lowest, scale, score, now);
    Raise(now, highest, sum, shrink);
    Shrink(shrink, out);
    Weigh(now, sum, score);
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      uint32_t p[4];
      Probabilities(score, k, p);
      AddValues(values[k * 16 + lane % 16], p, out);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    QuadSum(sum[r]);
    if (rows[r] >= tile.rows) continue;
    if (a.sinks != nullptr) sum[r] += exp2f(SinkOf(a, head) - highest[r]);
    StoreRow(out, r, sum[r], dim, pair,
             a.out + (int64_t{tile.first_row + rows[r]} * a.heads + head) * dim);
  }
}

}  // namespace

int LaunchPrefillAttention(const AttentionArgs& a, int tiles, CUstream_st* stream) {
  if (a.head_dim % 16 != 0 || a.head_dim > kMaxHeadDim || tiles > 65535) {
    return static_cast<int>(cudaErrorInvalidValue);
  }
  const dim3 grid(a.heads, tiles);
  const auto kernel = a.head_dim <= 32    ? PrefillKernel<32, 64>
                      : a.head_dim <= 64  ? PrefillKernel<64, 64>
                      : a.head_dim <= 96  ? PrefillKernel<96, 64>
                      : a.head_dim <= 128 ? PrefillKernel<128, 64>
                                          : PrefillKernel<256, 32>;
  return LaunchEarly(kernel, grid, kThreads, 0, stream, a);
}

}  // namespace moert::host
