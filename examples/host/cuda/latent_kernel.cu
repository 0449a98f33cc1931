#include "host/cuda/latent_kernel.h"
#include "host/cuda/reduce.cuh"
#include "host/cuda/rotate_head.cuh"
#include "util/launch.cuh"

namespace moert::host {
namespace {

using gpu::GridDependencySync;
using gpu::LaunchEarly;
using gpu::TriggerDependentLaunch;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kHeadsOfBlock = kWarps;

__device__ __forceinline__ RopeArgs RopeOf(const LatentSizes& s) {
  RopeArgs rope;
  rope.frequencies = s.frequencies;
  rope.factors[0] = s.factors[0];
  rope.factors[1] = s.factors[1];
  rope.head_dim = s.rope_dim;
  return rope;
}

/// RMS norm of `width` channels by the block. get(i), put(i, v): channel i.
template <typename Get, typename Put>
__device__ __forceinline__ void NormBlock(int width, const float* weight, float eps, float* parts,
                                          Get get, Put put) {
  float squares = 0;
  for (int i = threadIdx.x; i < width; i += kThreads) squares = __fmaf_rn(get(i), get(i), squares);
  const float scale = 1.0f / sqrtf(BlockSum(squares, parts) / static_cast<float>(width) + eps);
  for (int i = threadIdx.x; i < width; i += kThreads) put(i, get(i) * scale * weight[i]);
}

/// One block per row.
__global__ void __launch_bounds__(kThreads) LatentKeysKernel(const __grid_constant__ LatentKeys a) {
  __shared__ float parts[32];
  __shared__ Rotation rotation;
  TriggerDependentLaunch();
  GridDependencySync();
  const LatentSizes& s = a.sizes;
  const RopeArgs rope = RopeOf(s);
  const int64_t index = blockIdx.x;
  const RowInput row = s.inputs.rows[index];
  const SequenceCache cache = s.inputs.sequences[row.sequence];
  MakeRotation(rope, cache.rope_set, row.position, &rotation);
  const float* const x = a.projected + index * a.stride;
  const auto channel = [&](int64_t i) { return a.bias == nullptr ? x[i] : x[i] + a.bias[i]; };
  if (s.q_rank > 0) {
    uint16_t* const to = a.q_latents + index * s.q_rank;
    NormBlock(s.q_rank, a.q_weight, s.eps, parts, channel,
              [&](int i, float v) { to[i] = ToBf16(v); });
  }
  uint16_t* const key = cache.keys + (s.layer * cache.capacity + row.position) * s.key_dim;
  NormBlock(
      s.kv_rank, a.k_weight, s.eps, parts, [&](int i) { return channel(a.keys + i); },
      [&](int i, float v) { key[i] = ToBf16(v); });
  if (threadIdx.x >= 32) return;
  RotateHead(
      rope, nullptr, rotation, [&](int i) { return channel(a.keys + s.kv_rank + i); },
      [&](int i, float v) { key[s.kv_rank + i] = ToBf16(v); });
  for (int i = s.kv_rank + s.rope_dim + static_cast<int>(threadIdx.x); i < s.key_dim; i += 32) {
    key[i] = 0;
  }
}

/// One block per kHeadsOfBlock heads of a row, one warp per head.
__global__ void __launch_bounds__(kThreads)
    LatentQueriesKernel(const __grid_constant__ LatentQueries a) {
  __shared__ Rotation rotation;
  TriggerDependentLaunch();
  GridDependencySync();
  const LatentSizes& s = a.sizes;
  const RopeArgs rope = RopeOf(s);
  const int64_t index = blockIdx.x;
  const RowInput row = s.inputs.rows[index];
  MakeRotation(rope, s.inputs.sequences[row.sequence].rope_set, row.position, &rotation);
  __syncthreads();
  const int head = blockIdx.y * kHeadsOfBlock + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (head >= s.heads) return;
  const float* const q = a.queries + index * a.stride + head * (s.nope_dim + s.rope_dim);
  const int64_t place = index * s.heads + head;
  for (int i = lane; i < s.nope_dim; i += 32) a.nope[place * s.nope_dim + i] = ToBf16(q[i]);
  uint16_t* const absorbed = a.absorbed + place * s.key_dim;
  RotateHead(
      rope, nullptr, rotation, [&](int i) { return q[s.nope_dim + i]; },
      [&](int i, float v) { absorbed[s.kv_rank + i] = ToBf16(v); });
  for (int i = s.kv_rank + s.rope_dim + lane; i < s.key_dim; i += 32) absorbed[i] = 0;
}

}  // namespace

int LaunchLatentKeys(const LatentKeys& args, CUstream_st* stream) {
  if (args.sizes.rope_dim > 2 * kMaxRotations) return static_cast<int>(cudaErrorInvalidValue);
  return LaunchEarly(LatentKeysKernel, dim3(args.sizes.rows), kThreads, 0, stream, args);
}

int LaunchLatentQueries(const LatentQueries& args, CUstream_st* stream) {
  if (args.sizes.rope_dim > 2 * kMaxRotations) return static_cast<int>(cudaErrorInvalidValue);
  const dim3 grid(args.sizes.rows, (args.sizes.heads + kHeadsOfBlock - 1) / kHeadsOfBlock);
  return LaunchEarly(LatentQueriesKernel, grid, kThreads, 0, stream, args);
}

}  // namespace moert::host
