// The operations of a layer on one head of queries or keys before attention, by a warp.
#ifndef MOERT_EXAMPLES_HOST_CUDA_ROTATE_HEAD_CUH_
#define MOERT_EXAMPLES_HOST_CUDA_ROTATE_HEAD_CUH_

#include "host/cuda/reduce.cuh"
#include "host/cuda/rope_kernel.h"

namespace moert::host {

/// Cosines and sines of one position, in shared memory.
struct Rotation {
  float cosine[kMaxRotations];
  float sine[kMaxRotations];
};

/// The cosine and sine of pair i of a head; i is less than half the channels.
__device__ __forceinline__ void CosineAndSine(const RopeArgs& a, int rope_set, int position, int i,
                                              float* cosine, float* sine) {
  const float factor = rope_set == 0 ? a.factors[0] : a.factors[1];
  float s, c;
  if (i >= a.rotated) {
    *cosine = 1;
    *sine = 0;
    return;
  }
  sincosf(static_cast<float>(position) * a.frequencies[rope_set * (a.head_dim / 2) + i], &s, &c);
  *cosine = c * factor;
  *sine = s * factor;
}

/// Called by all threads of the block; a barrier must follow.
__device__ __forceinline__ void MakeRotation(const RopeArgs& a, int rope_set, int position,
                                             Rotation* rotation) {
  for (int i = threadIdx.x; i < a.head_dim / 2; i += static_cast<int>(blockDim.x)) {
    CosineAndSine(a, rope_set, position, i, &rotation->cosine[i], &rotation->sine[i]);
  }
}

/// One channel of a row with bias and clipping. at: its place in the row.
__device__ __forceinline__ float Channel(const RopeArgs& a, const float* row, int at) {
  float v = __ldcg(row + at);
  if (a.bias != nullptr) v += a.bias[at];
  if (a.clip > 0) v = fminf(fmaxf(v, -a.clip), a.clip);
  return v;
}

/// A lane's part of a head of up to 64 kPairs channels: i and half + i of each pair (i, half + i)
/// with i = lane, lane + 32, ... Zeros where there is none.
template <int kPairs>
struct Pairs {
  float low[kPairs], high[kPairs];

  /// get(i): channel i.
  template <typename Get>
  __device__ __forceinline__ void Read(int half, Get get) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int i = lane + j * 32;
      low[j] = i < half ? get(i) : 0.0f;
      high[j] = i < half ? get(half + i) : 0.0f;
    }
  }
  /// put(i, v): channel i is v.
  template <typename Put>
  __device__ __forceinline__ void Write(int half, Put put) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int i = lane + j * 32;
      if (i >= half) continue;
      put(i, low[j]);
      put(half + i, high[j]);
    }
  }
};

/// Cosines (low) and sines (high) of a position.
template <int kPairs>
__device__ __forceinline__ Pairs<kPairs> RotationOf(const RopeArgs& a, int rope_set, int position) {
  const int half = a.head_dim / 2, lane = threadIdx.x % 32;
  Pairs<kPairs> rotation;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int i = lane + j * 32;
    rotation.low[j] = rotation.high[j] = 0;
    if (i >= half) continue;
    CosineAndSine(a, rope_set, position, i, &rotation.low[j], &rotation.high[j]);
  }
  return rotation;
}

/// By a warp: root-mean-square norm of a head.
template <int kPairs>
__device__ __forceinline__ void NormPairs(const RopeArgs& a, const Pairs<kPairs>& weight,
                                          Pairs<kPairs>* x) {
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    squares = __fmaf_rn(x->low[j], x->low[j], squares);
    squares = __fmaf_rn(x->high[j], x->high[j], squares);
  }
  const float scale = 1.0f / sqrtf(WarpSum(squares) / static_cast<float>(a.head_dim) + a.norm_eps);
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    x->low[j] = x->low[j] * scale * weight.low[j];
    x->high[j] = x->high[j] * scale * weight.high[j];
  }
}

/// By a warp: normalizes a head, if `normed`, and rotates it.
template <int kPairs>
__device__ __forceinline__ void RotatePairs(const RopeArgs& a, bool normed,
                                            const Pairs<kPairs>& weight,
                                            const Pairs<kPairs>& rotation, Pairs<kPairs>* x) {
  if (normed) NormPairs(a, weight, x);
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const float l = x->low[j], h = x->high[j], c = rotation.low[j], s = rotation.high[j];
    x->low[j] = __fmaf_rn(l, c, -(h * s));
    x->high[j] = __fmaf_rn(h, c, l * s);
  }
}

/// Normalizes and rotates a head; the rotation is in shared memory. get(i) and put(i, v) access the
/// head's channel i; weight: of its norm, or null.
template <typename Get, typename Put>
__device__ __forceinline__ void RotateHead(const RopeArgs& a, const float* weight,
                                           const Rotation& rotation, Get get, Put put) {
  constexpr int kPairs = kMaxRotations / 32;
  const int half = a.head_dim / 2, lane = threadIdx.x % 32;
  Pairs<kPairs> x, weights = {}, turn = {};
  x.Read(half, get);
  if (weight != nullptr) weights.Read(half, [&](int i) { return weight[i]; });
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int i = lane + j * 32;
    if (i >= half) continue;
    turn.low[j] = rotation.cosine[i];
    turn.high[j] = rotation.sine[i];
  }
  RotatePairs(a, weight != nullptr && !a.norm_last, weights, turn, &x);
  if (weight != nullptr && a.norm_last) NormPairs(a, weights, &x);
  x.Write(half, put);
}

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_ROTATE_HEAD_CUH_
