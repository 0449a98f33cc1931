// What a layer does to one head of queries or keys before attention, by a warp.
#ifndef MOERT_EXAMPLES_HOST_CUDA_ROTATE_HEAD_CUH_
#define MOERT_EXAMPLES_HOST_CUDA_ROTATE_HEAD_CUH_

#include "host/cuda/reduce.cuh"
#include "host/cuda/rope_kernel.h"

namespace moert::host {

constexpr int kMaxRotations = 128;  // half the largest head_dim

/// Cosines and sines of one position, in shared memory.
struct Rotation {
  float cosine[kMaxRotations];
  float sine[kMaxRotations];
};

/// By all threads of the block; a barrier must follow.
__device__ __forceinline__ void MakeRotation(const RopeArgs& a, int rope_set, int position,
                                             Rotation* rotation) {
  const int half = a.head_dim / 2;
  const float factor = rope_set == 0 ? a.factors[0] : a.factors[1];
  for (int i = threadIdx.x; i < half; i += static_cast<int>(blockDim.x)) {
    const float angle = static_cast<float>(position) * a.frequencies[rope_set * half + i];
    float s, c;
    sincosf(angle, &s, &c);
    rotation->cosine[i] = c * factor;
    rotation->sine[i] = s * factor;
  }
}

/// One channel of a row with bias and clipping. at: its place in the row.
__device__ __forceinline__ float Channel(const RopeArgs& a, const float* row, int at) {
  float v = __ldcg(row + at);
  if (a.bias != nullptr) v += a.bias[at];
  if (a.clip > 0) v = fminf(fmaxf(v, -a.clip), a.clip);
  return v;
}

/// Rotates a head. get(i), put(i, v): its channel i; weight: of its norm, or null.
template <typename Get, typename Put>
__device__ __forceinline__ void RotateHead(const RopeArgs& a, const float* weight,
                                           const Rotation& rotation, Get get, Put put) {
  const int half = a.head_dim / 2, lane = threadIdx.x % 32;
  constexpr int kPerLane = kMaxRotations / 32;
  float low[kPerLane], high[kPerLane];
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const int i = lane + j * 32;
    low[j] = i < half ? get(i) : 0.0f;
    high[j] = i < half ? get(half + i) : 0.0f;
    squares = __fmaf_rn(low[j], low[j], squares);
    squares = __fmaf_rn(high[j], high[j], squares);
  }
  float scale = 1;
  if (weight != nullptr) {
    scale = 1.0f / sqrtf(WarpSum(squares) / static_cast<float>(a.head_dim) + a.norm_eps);
  }
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const int i = lane + j * 32;
    if (i >= half) continue;
    float l = low[j], h = high[j];
    if (weight != nullptr) {
      l = l * scale * weight[i];
      h = h * scale * weight[half + i];
    }
    const float c = rotation.cosine[i], s = rotation.sine[i];
    put(i, __fmaf_rn(l, c, -(h * s)));
    put(half + i, __fmaf_rn(h, c, l * s));
  }
}

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_ROTATE_HEAD_CUH_
