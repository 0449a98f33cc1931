// Routing on the device: the gate's logits, and the experts of every token.
#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/primitives/element.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/top_k.cuh"
#include "kernels/cuda/route.h"

namespace moert::cuda {
namespace {

constexpr int kGateTokens = 4;
constexpr int kGateParts = 8;  // of the width, each summed by itself
constexpr int kManyGateRows = 256;
constexpr int kFewTokens = 64;  // up to here a CTA an expert, else a warp an expert

/// Sums of part `part` of an expert's logits for kGateTokens tokens, in every lane.
template <typename T>
__device__ __forceinline__ void GatePart(const float* row, const T* const (&at)[kGateTokens],
                                         int hidden, int part, float (&sum)[kGateTokens]) {
  const int width = (hidden + kGateParts - 1) / kGateParts;
  const int end = min(hidden, (part + 1) * width);
#pragma unroll
  for (int t = 0; t < kGateTokens; ++t) sum[t] = 0;
#pragma unroll 8
  for (int i = part * width + static_cast<int>(threadIdx.x) % 32; i < end; i += 32) {
    const float g = row[i];
#pragma unroll
    for (int t = 0; t < kGateTokens; ++t) sum[t] = fmaf(g, ToFloat(at[t][i]), sum[t]);
  }
#pragma unroll
  for (int t = 0; t < kGateTokens; ++t) sum[t] = WarpSum(sum[t]);
}

/// kGateTokens tokens at a time: the gate's row is read once for them. The order of additions
/// depends on the width alone: the parts, each by the lanes of one warp, are summed in order.
template <typename T, bool kCtaAnExpert>
__global__ void __launch_bounds__(256)
    GateLogitsKernel(const T* x, int tokens, int hidden, int64_t stride, const float* gate,
                     int experts, float* logits) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int expert = kCtaAnExpert ? static_cast<int>(blockIdx.x) : blockIdx.x * 8 + warp;
  const int first = blockIdx.y * kGateTokens;
  if (expert >= experts) return;
  const float* row = gate + static_cast<int64_t>(expert) * hidden;
  const T* at[kGateTokens];
#pragma unroll
  for (int t = 0; t < kGateTokens; ++t) at[t] = x + min(first + t, tokens - 1) * stride;
  float total[kGateTokens] = {};
  if constexpr (kCtaAnExpert) {
    __shared__ float parts[kGateParts][kGateTokens];
    GatePart(row, at, hidden, warp, total);
    if (lane == 0) {
#pragma unroll
      for (int t = 0; t < kGateTokens; ++t) parts[warp][t] = total[t];
    }
    __syncthreads();
    if (warp != 0) return;
#pragma unroll
    for (int t = 0; t < kGateTokens; ++t) {
      total[t] = parts[0][t];
      for (int p = 1; p < kGateParts; ++p) total[t] += parts[p][t];
    }
  } else {
    for (int p = 0; p < kGateParts; ++p) {
      float sum[kGateTokens];
      GatePart(row, at, hidden, p, sum);
#pragma unroll
      for (int t = 0; t < kGateTokens; ++t) total[t] = p == 0 ? sum[t] : total[t] + sum[t];
    }
  }
  if (lane != 0) return;
#pragma unroll
  for (int t = 0; t < kGateTokens; ++t) {
    if (first + t < tokens) logits[static_cast<int64_t>(first + t) * experts + expert] = total[t];
  }
}

/// The same sums, bit for bit, of many tokens: a warp takes kManyExperts experts by kManyTokens
/// tokens, so that few of its instructions are loads.
constexpr int kManyExperts = 2;
constexpr int kManyTokens = 16;
template <typename T>
__global__ void __launch_bounds__(256)
    ManyGateLogitsKernel(const T* x, int tokens, int hidden, int64_t stride, const float* gate,
                         int experts, float* logits) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int lane = threadIdx.x % 32;
  const int expert = (blockIdx.x * 8 + static_cast<int>(threadIdx.x) / 32) * kManyExperts;
  const int first = blockIdx.y * kManyTokens;
  if (expert >= experts) return;
  const float* rows[kManyExperts];
#pragma unroll
  for (int e = 0; e < kManyExperts; ++e) {
    rows[e] = gate + static_cast<int64_t>(min(expert + e, experts - 1)) * hidden;
  }
  const T* from = x + first * stride;
  const int last = min(kManyTokens, tokens - first) - 1;
  const int width = (hidden + kGateParts - 1) / kGateParts;
  float total[kManyExperts][kManyTokens];
#pragma unroll 1
  for (int p = 0; p < kGateParts; ++p) {
    const int end = min(hidden, (p + 1) * width);
    float sum[kManyExperts][kManyTokens] = {};
#pragma unroll 2
    for (int i = p * width + lane; i < end; i += 32) {
      float g[kManyExperts];
#pragma unroll
      for (int e = 0; e < kManyExperts; ++e) g[e] = rows[e][i];
#pragma unroll
      for (int t = 0; t < kManyTokens; ++t) {
        const float v = ToFloat(from[min(t, last) * stride + i]);
#pragma unroll
        for (int e = 0; e < kManyExperts; ++e) sum[e][t] = fmaf(g[e], v, sum[e][t]);
      }
    }
#pragma unroll
    for (int e = 0; e < kManyExperts; ++e) {
#pragma unroll
      for (int t = 0; t < kManyTokens; ++t) {
        const float part = WarpSum(sum[e][t]);
        total[e][t] = p == 0 ? part : total[e][t] + part;
      }
    }
  }
  if (lane != 0) return;
#pragma unroll
  for (int e = 0; e < kManyExperts; ++e) {
#pragma unroll
    for (int t = 0; t < kManyTokens; ++t) {
      if (expert + e < experts && t <= last) {
        logits[static_cast<int64_t>(first + t) * experts + expert + e] = total[e][t];
      }
    }
  }
}

/// One pick of sparsemixer: the highest logit not taken and its softmax weight among those that are
/// relatively close to it.
template <int kPerLane>
__device__ int SparseMixerPick(const DeviceRouting& routing, const float (&logit)[kPerLane],
                               int lane, uint32_t* taken, float* weight) {
  const uint32_t before = *taken;
  const int e = Highest(logit, before, routing.num_experts, lane);
  const float top = Take(logit, e, lane, taken);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (lane + 32 * i >= routing.num_experts || (before >> i & 1)) continue;
    const float distance = (top - logit[i]) / fmaxf(fabsf(logit[i]), top);
    // 0 / 0, a logit equal to a top of 0, counts as close.
    if (!(distance > routing.sparsemixer_threshold)) sum += expf(logit[i] - top);
  }
  *weight = 1 / WarpSum(sum);
  return e;
}

/// A warp a token; at most 32 kPerLane experts.
template <int kPerLane>
__global__ void __launch_bounds__(128)
    TopKKernel(const __grid_constant__ DeviceRouting routing, int tokens, float* logits,
               int32_t* ids, float* weights) {
  TriggerDependentLaunch();
  GridDependencySync();
  __shared__ float group_keys[4][32 * kPerLane], group_ranks[4][32 * kPerLane];
  const int token = blockIdx.x * 4 + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (token >= tokens) return;
  const int experts = routing.num_experts;
  float* row = logits + static_cast<int64_t>(token) * experts;
  float key[kPerLane];  // what is chosen by
  float score[kPerLane];
  float top = -INFINITY;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    key[i] = e < experts ? row[e] : -INFINITY;
    top = fmaxf(top, key[i]);
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(kFull, top, d));
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    score[i] = lane + 32 * i >= experts ? 0.0f
               : routing.kind == 2      ? 1 / (1 + expf(-key[i]))
                                        : expf(key[i] - top);
    sum += score[i];
  }
  sum = routing.kind == 2 ? 1.0f : WarpSum(sum);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    score[i] /= sum;
    if (e >= experts) continue;
    row[e] = score[i];
    if (routing.kind == 0 || routing.kind == 2) {
      key[i] = score[i] + (routing.selection_bias == nullptr ? 0.0f : routing.selection_bias[e]);
    }
  }
  if (routing.top_groups != routing.num_groups && (routing.kind == 0 || routing.kind == 2)) {
    const int warp = threadIdx.x / 32;
    MaskGroups(routing, key, lane, group_keys[warp], group_ranks[warp]);
  }
  float chosen_weight = 0;  // lane j keeps the j-th
  int chosen_id = 0;
  float total = 0;
  uint32_t taken = 0;
  for (int j = 0; j < routing.top_k; ++j) {
    float w = 0;
    int e;
    if (routing.kind == 3) {
      e = SparseMixerPick(routing, key, lane, &taken, &w);
    } else {
      e = Highest(key, taken, experts, lane);
      w = Take(score, e, lane, &taken);
    }
    total += w;
    if (lane == j) {
      chosen_weight = w;
      chosen_id = e;
    }
  }
  if (lane < routing.top_k) {
    // Sigmoids may all underflow; the published models guard the division like this.
    if (routing.kind == 1 || (routing.renormalize && routing.kind != 3)) {
      chosen_weight /= total + 1e-20f;
    }
    chosen_weight *= routing.scaling;
    const int64_t at = static_cast<int64_t>(token) * routing.top_k + lane;
    ids[at] = chosen_id;
    weights[at] = chosen_weight;
  }
}

template <typename T>
using Element = std::remove_const_t<std::remove_pointer_t<T>>;

}  // namespace

int LaunchGateLogits(const DeviceRows& x, const float* gate, int experts, float* logits,
                     CUstream_st* stream) {
  const bool few = x.rows <= kFewTokens;
  const dim3 grid(few ? experts : (experts + 7) / 8, (x.rows + kGateTokens - 1) / kGateTokens);
  int error = 0;
  WithElement(x.dtype, [&](auto type) {
    using T = Element<decltype(type)>;
    if (x.rows >= kManyGateRows) {
      constexpr int kCtaExperts = 8 * kManyExperts;
      const dim3 many((experts + kCtaExperts - 1) / kCtaExperts,
                      (x.rows + kManyTokens - 1) / kManyTokens);
      error =
          LaunchEarly(ManyGateLogitsKernel<T>, many, 256, 0, stream, static_cast<const T*>(x.data),
                      x.rows, x.cols, x.stride, gate, experts, logits);
      return;
    }
    const auto kernel = few ? GateLogitsKernel<T, true> : GateLogitsKernel<T, false>;
    error = LaunchEarly(kernel, grid, 256, 0, stream, static_cast<const T*>(x.data), x.rows, x.cols,
                        x.stride, gate, experts, logits);
  });
  return error;
}

int LaunchTopK(const DeviceRouting& routing, int tokens, float* logits, int32_t* ids,
               float* weights, CUstream_st* stream) {
  const auto kernel = routing.num_experts <= 64    ? TopKKernel<2>
                      : routing.num_experts <= 128 ? TopKKernel<4>
                      : routing.num_experts <= 256 ? TopKKernel<8>
                                                   : TopKKernel<kMaxExperts / 32>;
  return LaunchEarly(kernel, (tokens + 3) / 4, 128, 0, stream, routing, tokens, logits, ids,
                     weights);
}

}  // namespace moert::cuda
