#include "host/cuda/reduce.cuh"
#include "host/cuda/rope_kernel.h"
#include "util/launch.cuh"

namespace moert::host {
namespace {

using gpu::GridDependencySync;
using gpu::LaunchEarly;
using gpu::TriggerDependentLaunch;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxHalf = 128;

/// RMS norm of `width` channels by the whole block.
__device__ void NormAll(float* x, int width, const float* weight, float eps, float* parts) {
  float squares = 0;
  for (int i = threadIdx.x; i < width; i += kThreads) squares += x[i] * x[i];
  const float scale = 1.0f / sqrtf(BlockSum(squares, parts) / static_cast<float>(width) + eps);
  for (int i = threadIdx.x; i < width; i += kThreads) x[i] = x[i] * scale * weight[i];
}

/// A block a row; then a warp a head.
__global__ void __launch_bounds__(kThreads) RopeKernel(const __grid_constant__ RopeArgs a) {
  __shared__ float parts[32];
  __shared__ float cosine[kMaxHalf], sine[kMaxHalf];
  TriggerDependentLaunch();
  GridDependencySync();
  const int dim = a.head_dim, half = dim / 2;
  const int q = a.heads * dim, kv = a.kv_heads * dim, all = q + 2 * kv;
  const RowInput row = a.inputs.rows[blockIdx.x];
  const SequenceCache cache = a.inputs.sequences[row.sequence];
  float* x = a.qkv + static_cast<int64_t>(blockIdx.x) * all;

  const float factor = cache.rope_set == 0 ? a.factors[0] : a.factors[1];
  for (int i = threadIdx.x; i < half; i += kThreads) {
    const float angle = static_cast<float>(row.position) * a.frequencies[cache.rope_set * half + i];
    float s, c;
    sincosf(angle, &s, &c);
    cosine[i] = c * factor;
    sine[i] = s * factor;
  }
  if (a.bias != nullptr) {
    for (int i = threadIdx.x; i < all; i += kThreads) x[i] += a.bias[i];
    __syncthreads();
  }
  if (a.norm_full && a.q_weight != nullptr) {
    NormAll(x, q, a.q_weight, a.norm_eps, parts);
    NormAll(x + q, kv, a.k_weight, a.norm_eps, parts);
  }
  if (a.clip > 0) {
    __syncthreads();
    for (int i = threadIdx.x; i < all; i += kThreads) x[i] = fminf(fmaxf(x[i], -a.clip), a.clip);
  }
  __syncthreads();

  const int lane = threadIdx.x % 32;
  for (int head = threadIdx.x / 32; head < a.heads + 2 * a.kv_heads; head += kWarps) {
    float* h = x + head * dim;
    const int kv_head = (head - a.heads) % a.kv_heads;
    const int64_t stored =
        ((static_cast<int64_t>(a.layer) * a.kv_heads + kv_head) * cache.capacity + row.position) *
        dim;
    if (head >= a.heads + a.kv_heads) {
      for (int i = lane; i < dim; i += 32) cache.values[stored + i] = ToBf16(h[i]);
      continue;
    }
    const bool query = head < a.heads;
    const float* weight = a.norm_full ? nullptr : query ? a.q_weight : a.k_weight;
    float scale = 1;
    if (weight != nullptr) {
      float squares = 0;
      for (int i = lane; i < dim; i += 32) squares += h[i] * h[i];
      scale = 1.0f / sqrtf(WarpSum(squares) / static_cast<float>(dim) + a.norm_eps);
    }
    for (int i = lane; i < half; i += 32) {
      float low = h[i], high = h[half + i];
      if (weight != nullptr) {
        low = low * scale * weight[i];
        high = high * scale * weight[half + i];
      }
      const float rotated_low = low * cosine[i] - high * sine[i];
      const float rotated_high = high * cosine[i] + low * sine[i];
      if (query) {
        h[i] = rotated_low;
        h[half + i] = rotated_high;
      } else {
        cache.keys[stored + i] = ToBf16(rotated_low);
        cache.keys[stored + half + i] = ToBf16(rotated_high);
      }
    }
  }
}

}  // namespace

int LaunchRope(const RopeArgs& args, CUstream_st* stream) {
  if (args.head_dim > 2 * kMaxHalf) return static_cast<int>(cudaErrorInvalidValue);
  return LaunchEarly(RopeKernel, dim3(args.rows), kThreads, 0, stream, args);
}

}  // namespace moert::host
