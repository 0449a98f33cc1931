// Routing of a token by a warp, for every moert::RoutingKind.
#ifndef MOERT_KERNELS_CUDA_ROUTE_CHOOSE_EXPERTS_CUH_
#define MOERT_KERNELS_CUDA_ROUTE_CHOOSE_EXPERTS_CUH_

#include "kernels/cuda/primitives/element.cuh"
#include "kernels/cuda/route/route.h"
#include "kernels/cuda/route/top_k.cuh"

namespace moert::cuda {

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

/// A lane's part of a token's choice: the lane's-th expert and its weight.
struct Chosen {
  int id = 0;
  float weight = 0;
};

/// Whether experts are chosen by their scores, among groups.
__device__ __forceinline__ bool ByScore(DeviceRoutingKind kind) {
  return kind == DeviceRoutingKind::kSoftmaxTopK || kind == DeviceRoutingKind::kSigmoidGrouped ||
         kind == DeviceRoutingKind::kSqrtSoftplusGrouped;
}

/// sqrt(log(1 + e^x)) without overflow and without loss of small values.
static __device__ __noinline__ float SqrtSoftplus(float x) {
  return sqrtf(fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))));
}

/// Where the scores of a token go; null: nowhere. `scores` may be where the logits are.
struct ScoreRows {
  float* scores = nullptr;
  float* kept = nullptr;  // a copy for the CTA itself
};

/// Computes the scores of a token's logits, in `score` and in `rows`. `key` receives the keys by
/// which experts are chosen.
template <int kPerLane>
__device__ __forceinline__ void Score(const DeviceRouting& routing, int lane, const float* logits,
                                      const ScoreRows& rows, float (&key)[kPerLane],
                                      float (&score)[kPerLane]) {
  const int experts = routing.num_experts;
  float top = -INFINITY;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    key[i] = e < experts ? logits[e] : -INFINITY;
  }
  if (routing.logit_bias != nullptr) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (lane + 32 * i < experts) key[i] += routing.logit_bias[lane + 32 * i];
    }
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) top = fmaxf(top, key[i]);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(kFull, top, d));
  float sum = 1;
  if (routing.kind == DeviceRoutingKind::kSigmoidGrouped ||
      routing.kind == DeviceRoutingKind::kTopKSigmoid) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      score[i] = lane + 32 * i < experts ? 1 / (1 + expf(-key[i])) : 0.0f;
    }
  } else if (routing.kind == DeviceRoutingKind::kSqrtSoftplusGrouped) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      score[i] = lane + 32 * i < experts ? SqrtSoftplus(key[i]) : 0.0f;
    }
  } else {
    sum = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      score[i] = lane + 32 * i < experts ? expf(key[i] - top) : 0.0f;
      sum += score[i];
    }
    sum = WarpSum(sum);
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    score[i] /= sum;
    if (e >= experts) continue;
    if (rows.scores != nullptr) rows.scores[e] = score[i];
    if (rows.kept != nullptr) rows.kept[e] = score[i];
    if (ByScore(routing.kind)) {
      key[i] = score[i] + (routing.selection_bias == nullptr ? 0.0f : routing.selection_bias[e]);
    }
  }
}

/// The experts of token `token`, by a warp, from its logits; rows: as Score. At most 32 kPerLane
/// experts. keys, ranks: scratch of the warp, 32 kPerLane each.
template <int kPerLane>
__device__ __forceinline__ Chosen ChooseExperts(const DeviceRouting& routing, int token,
                                                const float* logits, const ScoreRows& rows,
                                                float* keys, float* ranks) {
  const int lane = threadIdx.x % 32;
  const int experts = routing.num_experts;
  float key[kPerLane], score[kPerLane];
  Score(routing, lane, logits, rows, key, score);
  if (routing.top_groups != routing.num_groups && ByScore(routing.kind)) {
    MaskGroups(routing, key, lane, keys, ranks);
  }
  const int32_t* listed = nullptr;
  if (routing.hash_experts != nullptr) {
    const int id = min(max(routing.token_ids[token], 0), routing.hash_vocab - 1);
    listed = routing.hash_experts + int64_t{id} * routing.top_k;
  }
  const bool picks = routing.kind == DeviceRoutingKind::kSparseMixer;
  Chosen chosen;
  float total = 0;
  uint32_t taken = 0;
  for (int j = 0; j < routing.top_k; ++j) {
    float w = 0;
    int e;
    if (picks) {
      e = SparseMixerPick(routing, key, lane, &taken, &w);
    } else {
      e = listed != nullptr ? listed[j] : Highest(key, taken, experts, lane);
      w = Take(score, e, lane, &taken);
    }
    total += w;
    if (lane == j) {
      chosen.weight = w;
      chosen.id = e;
    }
  }
  // Sigmoids may all underflow; the published models guard the division like this.
  if (routing.kind == DeviceRoutingKind::kTopKSoftmax || (routing.renormalize && !picks)) {
    chosen.weight /= total + 1e-20f;
  }
  chosen.weight *= routing.scaling;
  if (routing.expert_scales != nullptr) chosen.weight *= routing.expert_scales[chosen.id];
  return chosen;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_ROUTE_CHOOSE_EXPERTS_CUH_
