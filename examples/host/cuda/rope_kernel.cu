#include "host/cuda/reduce.cuh"
#include "host/cuda/rope_kernel.h"
#include "host/cuda/rotate_head.cuh"
#include "util/launch.cuh"

namespace moert::host {
namespace {

using gpu::GridDependencySync;
using gpu::LaunchEarly;
using gpu::TriggerDependentLaunch;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

/// RMS norm of `width` channels by the whole block.
__device__ void NormAll(float* x, int width, const float* weight, float eps, float* parts) {
  float squares = 0;
  for (int i = threadIdx.x; i < width; i += kThreads) squares += x[i] * x[i];
  const float scale = 1.0f / sqrtf(BlockSum(squares, parts) / static_cast<float>(width) + eps);
  for (int i = threadIdx.x; i < width; i += kThreads) x[i] = x[i] * scale * weight[i];
}

/// The temperature of a query at this position.
__device__ float TemperatureOf(const RopeArgs& a, int position) {
  if (a.temperature_scale == 0) return 1;
  const double steps = floor((position + 1.0) / a.temperature_floor);
  return static_cast<float>(1 + a.temperature_scale * log1p(steps));
}

/// One block per row; its warps take one head at a time.
__global__ void __launch_bounds__(kThreads) RopeKernel(const __grid_constant__ RopeArgs a) {
  __shared__ float parts[32];
  __shared__ Rotation rotation;
  TriggerDependentLaunch();
  GridDependencySync();
  const int dim = a.head_dim;
  const int q = a.heads * dim, kv = a.kv_heads * dim, all = q + 2 * kv;
  const RowInput row = a.inputs.rows[blockIdx.x];
  const SequenceCache cache = a.inputs.sequences[row.sequence];
  float* x = a.qkv + static_cast<int64_t>(blockIdx.x) * (all + a.extra);
  const float temperature = TemperatureOf(a, row.position);
  MakeRotation(a, cache.rope_set, row.position, &rotation);
  const bool norm_full = a.norm_full && a.q_weight != nullptr;
  if (norm_full) {  // between bias and clipping
    if (a.bias != nullptr) {
      for (int i = threadIdx.x; i < all; i += kThreads) x[i] += a.bias[i];
    }
    NormAll(x, q, a.q_weight, a.norm_eps, parts);
    NormAll(x + q, kv, a.k_weight, a.norm_eps, parts);
    if (a.clip > 0) {
      __syncthreads();
      for (int i = threadIdx.x; i < all; i += kThreads) {
        x[i] = fminf(fmaxf(x[i], -a.clip), a.clip);
      }
    }
  }
  __syncthreads();

  for (int head = threadIdx.x / 32; head < a.heads + 2 * a.kv_heads; head += kWarps) {
    const int at = head * dim, kv_head = (head - a.heads) % a.kv_heads;
    const auto get = [&](int i) { return norm_full ? x[at + i] : Channel(a, x, at + i); };
    const int64_t stored =
        (a.channels_before + kv_head * dim) * cache.capacity + int64_t{row.position} * dim;
    if (head >= a.heads + a.kv_heads) {
      for (int i = threadIdx.x % 32; i < dim; i += 32) {
        cache.values[stored + i] = ToBf16(get(i) * a.value_scale);
      }
    } else if (head >= a.heads) {
      RotateHead(a, a.norm_full ? nullptr : a.k_weight, rotation, get,
                 [&](int i, float v) { cache.keys[stored + i] = ToBf16(v); });
    } else {
      RotateHead(a, a.norm_full ? nullptr : a.q_weight, rotation, get,
                 [&](int i, float v) { x[at + i] = v * temperature; });
    }
  }
}

}  // namespace

int LaunchRope(const RopeArgs& args, CUstream_st* stream) {
  if (args.head_dim > 2 * kMaxRotations) return static_cast<int>(cudaErrorInvalidValue);
  return LaunchEarly(RopeKernel, dim3(args.rows), kThreads, 0, stream, args);
}

}  // namespace moert::host
