// The work of one latent attention block on keys in shared memory: scores, softmax, mixed latents.
// Mixed latents are too wide for one warp's registers, so each warp keeps some of their channels
// for all queries, and scores are shared through shared memory.
#ifndef MOERT_EXAMPLES_HOST_CUDA_LATENT_BLOCK_CUH_
#define MOERT_EXAMPLES_HOST_CUDA_LATENT_BLOCK_CUH_

#include "host/cuda/decode_found.cuh"
#include "host/cuda/latent_attention_kernel.h"
#include "host/cuda/mma.cuh"
#include "host/cuda/reduce.cuh"

namespace moert::host::latent {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kColumns = 64;  // channels of the mixed latents per warp
static_assert(kWarps * kColumns == kMaxLatentValueDim);
constexpr int kPadding = 8;  // against bank conflicts between rows of a fragment

/// The shape of a block: 16 kTiles queries, kKeys keys at a time, kStages stages of keys in shared
/// memory.
template <int kTiles_, int kKeys_, int kStages_>
struct Form {
  static constexpr int kTiles = kTiles_, kKeys = kKeys_, kStages = kStages_;
  static constexpr int kQueries = kTiles * 16;
  static constexpr int kRow = kKeys + kPadding;                // row stride of scores and weights
  static constexpr int kLanes = kThreads / kQueries;           // lanes per query in the softmax
  static constexpr int kOfLane = kKeys / kLanes;               // keys per lane
  static constexpr int kOfWarp = kTiles * kKeys / 8 / kWarps;  // products of 16 queries and 8 keys
  static_assert(kOfWarp >= 1 && kLanes <= 32 && kWarps % kTiles == 0);

  static constexpr int64_t Bytes(int64_t key_dim) {
    return (kQueries + kStages * kKeys) * (key_dim + kPadding) * 2 + kQueries * kRow * 6 +
           kQueries * int64_t{3 * 4};
  }
};
using Wide = Form<4, 32, 2>;
using Narrow = Form<1, 64, 2>;
using Small = Form<1, 64, 1>;  // for devices with less than 100 KiB per block

/// A block's shared memory.
template <typename F>
struct Memory {
  uint16_t *queries, *keys;  // [kQueries], [kStages][kKeys] rows of `stride`
  int stride;
  float (*scores)[F::kRow];
  uint16_t (*weights)[F::kRow];  // bf16
  float* shrink;                 // [kQueries]
  Found* found;                  // [kQueries]

  __device__ __forceinline__ Memory(unsigned char* at, int key_dim) : stride(key_dim + kPadding) {
    queries = reinterpret_cast<uint16_t*>(at);
    keys = queries + F::kQueries * stride;
    scores = reinterpret_cast<float(*)[F::kRow]>(keys + F::kStages * F::kKeys * stride);
    weights = reinterpret_cast<uint16_t(*)[F::kRow]>(scores + F::kQueries);
    shrink = reinterpret_cast<float*>(weights + F::kQueries);
    found = reinterpret_cast<Found*>(shrink + F::kQueries);
  }
};

/// Writes the products of queries and keys to memory.scores; each warp computes some.
template <typename F>
__device__ __forceinline__ void Scores(const Memory<F>& memory, int key_dim, const uint16_t* keys) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int tile = warp % F::kTiles * 16, first = warp / F::kTiles;
  constexpr int kBetween = kWarps / F::kTiles;
  float sums[2][F::kOfWarp][4] = {};  // two, so that one product need not wait for the one before
  const uint16_t* q = memory.queries + (tile + lane % 16) * memory.stride + lane / 16 * 8;
  const uint16_t* k = keys + (first * 8 + lane % 8) * memory.stride + lane / 8 % 2 * 8;
  const auto multiply = [&](int step, float(&sum)[F::kOfWarp][4]) {
    uint32_t part[4];
    LoadMatrix(q + step * 16, part);
#pragma unroll
    for (int j = 0; j < F::kOfWarp; ++j) {
      uint32_t b0, b1;
      LoadColumns(k + j * kBetween * 8 * memory.stride + step * 16, &b0, &b1);
      Multiply(sum[j], part, b0, b1);
    }
  };
  const int steps = key_dim / 16;
#pragma unroll 2
  for (int step = 0; step < steps / 2; ++step) {
    multiply(2 * step, sums[0]);
    multiply(2 * step + 1, sums[1]);
  }
  if (steps % 2 != 0) multiply(steps - 1, sums[0]);
#pragma unroll
  for (int j = 0; j < F::kOfWarp; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      memory
          .scores[tile + lane / 4 + i / 2 * 8][(first + j * kBetween) * 8 + lane % 4 * 2 + i % 2] =
          sums[0][j][i] + sums[1][j][i];
    }
  }
}

/// A query's running softmax, computed by kLanes lanes; `sum` is over the keys of this lane.
struct Softmax {
  float highest = -INFINITY, sum = 0;

  /// Turns the scores of kKeys keys from `from` on into weights; keys outside of [low, end) get 0.
  template <typename F>
  __device__ __forceinline__ void Weigh(const Memory<F>& memory, float scale, int from, int low,
                                        int end) {
    const int query = threadIdx.x / F::kLanes, lane = threadIdx.x % F::kLanes;
    float score[F::kOfLane], now = highest;
#pragma unroll
    for (int j = 0; j < F::kOfLane; ++j) {
      const int at = lane + j * F::kLanes, key = from + at;
      const bool seen = key >= low && key < end;
      score[j] = seen ? memory.scores[query][at] * scale : -INFINITY;
      now = fmaxf(now, score[j]);
    }
#pragma unroll
    for (int lanes = F::kLanes / 2; lanes > 0; lanes /= 2) {
      now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, lanes));
    }
    const float shrink = highest == -INFINITY ? 0.0f : exp2f(highest - now);
    highest = now;
    sum *= shrink;
#pragma unroll
    for (int j = 0; j < F::kOfLane; ++j) {
      const float weight = score[j] == -INFINITY ? 0.0f : exp2f(score[j] - now);
      sum += weight;
      memory.weights[query][lane + j * F::kLanes] = ToBf16(weight);
    }
    if (lane == 0) memory.shrink[query] = shrink;
  }

  template <typename F>
  __device__ __forceinline__ void Store(const Memory<F>& memory) const {
    float total = sum;
#pragma unroll
    for (int lanes = F::kLanes / 2; lanes > 0; lanes /= 2) {
      total += __shfl_xor_sync(0xffffffffu, total, lanes);
    }
    if (threadIdx.x % F::kLanes == 0) memory.found[threadIdx.x / F::kLanes] = {highest, total};
  }
};

/// The mixed latents of a warp: kColumns channels of all queries.
template <typename F>
struct Mixed {
  float sums[F::kTiles][kColumns / 8][4] = {};

  static __device__ __forceinline__ int FirstColumn() {
    return static_cast<int>(threadIdx.x) / 32 * kColumns;
  }

  __device__ __forceinline__ void Add(const Memory<F>& memory, const uint16_t* keys,
                                      int value_dim) {
    const int lane = threadIdx.x % 32;
    if (FirstColumn() >= value_dim) return;
#pragma unroll
    for (int t = 0; t < F::kTiles; ++t) {
      const float* const shrink = memory.shrink + t * 16 + lane / 4;
      const float by[2] = {shrink[0], shrink[8]};
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[t][n][i] *= by[i / 2];
      }
    }
#pragma unroll
    for (int k = 0; k < F::kKeys / 16; ++k) {
      uint32_t weights[F::kTiles][4];
#pragma unroll
      for (int t = 0; t < F::kTiles; ++t) {
        LoadMatrix(&memory.weights[t * 16 + lane % 16][k * 16 + lane / 16 * 8], weights[t]);
      }
      const uint16_t* const row = keys + (k * 16 + lane % 16) * memory.stride + FirstColumn();
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        if (FirstColumn() + n * 8 >= value_dim) break;
        uint32_t b0, b1;
        LoadTransposed(row + n * 8, &b0, &b1);
#pragma unroll
        for (int t = 0; t < F::kTiles; ++t) Multiply(sums[t][n], weights[t], b0, b1);
      }
    }
  }

  /// Calls put(query, channel, sum, sum of channel + 1).
  template <typename Put>
  __device__ __forceinline__ void ForEach(int value_dim, Put put) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < F::kTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        const int channel = FirstColumn() + n * 8 + lane % 4 * 2;
        if (channel >= value_dim) break;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          put(t * 16 + lane / 4 + half * 8, channel, sums[t][n][2 * half],
              sums[t][n][2 * half + 1]);
        }
      }
    }
  }
};

}  // namespace moert::host::latent

#endif  // MOERT_EXAMPLES_HOST_CUDA_LATENT_BLOCK_CUH_
