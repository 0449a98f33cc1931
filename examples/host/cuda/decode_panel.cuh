// Keys and values in tensor core fragments, and a warp's running softmax over them.
#ifndef MOERT_EXAMPLES_HOST_CUDA_DECODE_PANEL_CUH_
#define MOERT_EXAMPLES_HOST_CUDA_DECODE_PANEL_CUH_

#include "host/cuda/mma.cuh"
#include "host/cuda/reduce.cuh"

namespace moert::host {

/// 16 keys, or values. A lane holds 8 neighbouring channels of every 32, of keys lane / 4 and 8
/// more.
template <int kSteps>
struct Panel {
  uint4 low[kSteps], high[kSteps];

  /// Loads keys [from, from + 16) that are in [begin, end); zeros for others.
  __device__ __forceinline__ void Load(const uint16_t* base, int dim, int from, int begin,
                                       int end) {
    const int lane = threadIdx.x % 32, key = from + lane / 4, d = lane % 4 * 8;
    const uint16_t* at = base + static_cast<int64_t>(key) * dim + d;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const bool inside = d + s * 32 < dim;
      low[s] = high[s] = make_uint4(0, 0, 0, 0);
      if (inside && key >= begin && key < end) {
        low[s] = *reinterpret_cast<const uint4*>(at + s * 32);
      }
      if (inside && key + 8 >= begin && key + 8 < end) {
        high[s] = *reinterpret_cast<const uint4*>(at + 8 * dim + s * 32);
      }
    }
  }
  /// Replaces keys [fresh, end) by those in shared memory.
  template <int kDim>
  __device__ __forceinline__ void Refresh(const uint16_t (*rows)[kDim], int dim, int from,
                                          int fresh, int end) {
    const int lane = threadIdx.x % 32, key = from + lane / 4, d = lane % 4 * 8;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (d + s * 32 >= dim) continue;
      if (key >= fresh && key < end) {
        low[s] = *reinterpret_cast<const uint4*>(&rows[key - fresh][d + s * 32]);
      }
      if (key + 8 >= fresh && key + 8 < end) {
        high[s] = *reinterpret_cast<const uint4*>(&rows[key + 8 - fresh][d + s * 32]);
      }
    }
  }
};

/// A warp's running softmax and weighted sums. Lane 4 g + q has query heads 2 q and 2 q + 1. mixed:
/// rows are channels (ChannelOf), columns the heads.
template <int kSteps>
struct Mix {
  float highest[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};  // of this lane's keys
  float mixed[2 * kSteps][4] = {};

  /// The channel of mixed[tile][0] and [1], for half 0, or of [2] and [3], for half 1.
  static __device__ __forceinline__ int ChannelOf(int tile, int half) {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
    return tile / 2 * 32 + g / 2 * 8 + g % 2 + (tile % 2 * 2 + half) * 2;
  }

  /// Adds the scores of keys [from, from + 16) to the softmax; keys outside of [begin, end) are
  /// ignored. high + low: the keys' weights as operands of tensor cores.
  __device__ __forceinline__ void Weigh(float (&score)[4], int from, int begin, int end,
                                        uint32_t (&high)[2], uint32_t (&low)[2]) {
    const int key = from + static_cast<int>(threadIdx.x) % 32 / 4;
    float now[2] = {highest[0], highest[1]};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int k = key + i / 2 * 8;
      if (k < begin || k >= end) score[i] = -INFINITY;
      now[i % 2] = fmaxf(now[i % 2], score[i]);
    }
    float shrink[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        now[h] = fmaxf(now[h], __shfl_xor_sync(0xffffffffu, now[h], lanes));
      }
      // Before the first keys there is nothing to rescale.
      shrink[h] = highest[h] == -INFINITY ? 0.0f : exp2f(highest[h] - now[h]);
      highest[h] = now[h];
      sum[h] = __fmul_rn(sum[h], shrink[h]);
    }
    float p[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      p[i] = score[i] == -INFINITY ? 0.0f : exp2f(score[i] - now[i % 2]);
      sum[i % 2] = __fadd_rn(sum[i % 2], p[i]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float a = p[2 * half], b = p[2 * half + 1];
      const uint32_t rounded = ToBf16Pair(a, b);
      const float2 back = FromBf16Pair(rounded);
      high[half] = Transposed(rounded);
      low[half] = Transposed(ToBf16Pair(a - back.x, b - back.y));
    }
#pragma unroll
    for (int t = 0; t < 2 * kSteps; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) mixed[t][i] *= shrink[i % 2];
    }
  }

  __device__ __forceinline__ void AddValues(const Panel<kSteps>& v, const uint32_t (&high)[2],
                                            const uint32_t (&low)[2]) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const uint32_t first[4] = {v.low[s].x, v.low[s].y, v.low[s].z, v.low[s].w};
      const uint32_t second[4] = {v.high[s].x, v.high[s].y, v.high[s].z, v.high[s].w};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t a[4] = {Transposed(first[2 * j]), Transposed(first[2 * j + 1]),
                               Transposed(second[2 * j]), Transposed(second[2 * j + 1])};
        Multiply(mixed[2 * s + j], a, high[0], high[1]);
        Multiply(mixed[2 * s + j], a, low[0], low[1]);
      }
    }
  }
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_DECODE_PANEL_CUH_
