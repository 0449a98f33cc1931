// Experts of few tokens and tokens by expert, by one CTA of kTileThreads.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_ROUTE_TOKENS_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_ROUTE_TOKENS_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/primitives/choose_experts.cuh"
#include "kernels/cuda/primitives/chunk_ranks.cuh"
#include "kernels/cuda/primitives/expert_tiles.cuh"
#include "kernels/cuda/primitives/selection_tally.cuh"

namespace moert::cuda {

constexpr int kMaxPairs = kFewTokens * kMaxTopK;

/// The host's ids and weights, -1 for what is none of ours.
__device__ __forceinline__ void TakeGiven(const RouteFewArgs& args, int pairs, int32_t* ids,
                                          float* weights) {
  for (int i = threadIdx.x; i < pairs; i += kTileThreads) {
    const int id = args.given_ids[i];
    ids[i] = args.ids[i] = id >= 0 && id < args.routing.num_experts ? id : -1;
    float weight = args.given_weights[i];
    if (args.routing.expert_scales != nullptr && ids[i] >= 0) {
      weight *= args.routing.expert_scales[id];
    }
    weights[i] = args.weights[i] = weight;
    if (args.used_ids != nullptr) args.used_ids[i] = ids[i];
  }
}

/// By a warp: every kWarps-th token's experts and their weights. `keys`: its scratch.
template <int kPerLane, int kWarps>
__device__ __forceinline__ void ChooseAll(const RouteFewArgs& args, int warp, int lane,
                                          float (&keys)[2][32 * kPerLane], int32_t* ids,
                                          float* weights) {
  const int top_k = args.routing.top_k;
  for (int token = warp; token < args.tokens; token += kWarps) {
    float* const row = args.scores + token * args.routing.num_experts;
    const Chosen chosen = ChooseExperts<kPerLane>(args.routing, token, row, row, keys[0], keys[1]);
    __syncwarp();
    if (lane >= top_k) continue;
    const int at = token * top_k + lane;
    ids[at] = args.ids[at] = chosen.id;
    weights[at] = args.weights[at] = chosen.weight;
  }
}

constexpr int kRounds = (kMaxPairs + kTileThreads - 1) / kTileThreads;

/// Of each pair that is this thread's: how many of its expert come before it in its warp. `before`:
/// zeros, then how many of an expert each warp of pairs has.
__device__ __forceinline__ void RankPairs(const int32_t* ids, int pairs, int in_use, int experts,
                                          uint16_t* before, int (&rank)[kRounds]) {
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int at = r * kTileThreads + static_cast<int>(threadIdx.x), of = at / 32;
    if (of < in_use) rank[r] = RankInWarp(at < pairs ? ids[at] : -1, before + of * experts);
  }
}

/// Stores the pairs by expert. `before`: summed over the warps; places: of an expert's first.
__device__ __forceinline__ void PlacePairs(const RouteFewArgs& args, const int32_t* ids, int pairs,
                                           int experts, const uint16_t* before, const int* places,
                                           const int (&rank)[kRounds], uint16_t* sorted) {
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int at = r * kTileThreads + static_cast<int>(threadIdx.x);
    if (at >= pairs || ids[at] < 0) continue;
    const int place = places[ids[at]] + before[at / 32 * experts + ids[at]] + rank[r];
    args.groups.sorted[place] = at;
    sorted[place] = static_cast<uint16_t>(at);
  }
}

/// Counts the call of the thread's expert, and of the layer. `sorted`: the expert's `count` pairs.
__device__ __forceinline__ void CountCall(const RouteFewArgs& args, int count, int pairs,
                                          const float* weights, const uint16_t* sorted) {
  const int e = threadIdx.x;
  float mass = 0;
  for (int i = 0; i < count; ++i) mass += weights[sorted[i]];
  if (count > 0) AddCall(args.tally + e, count, mass);
  if (e == 0) AddCall(args.tally + args.routing.num_experts, pairs, 0);
}

/// What RouteTokens finds, in shared memory.
struct RoutedPairs {
  __device__ RoutedPairs() {}
  int32_t ids[kMaxPairs];
  float weights[kMaxPairs];
  uint16_t sorted[kMaxPairs];   // by expert
  int32_t firsts[kFewExperts];  // where those of an expert begin
};
/// Shared memory of RouteTokens.
template <int kPerLane>
union RouteScratch {
  static constexpr int kWarps = kPerLane <= 8 ? 16 : 8;  // that choose; the others' have no room
  __device__ RouteScratch() {}
  float keys[kWarps][2][32 * kPerLane];
  struct {
    uint16_t before[kMaxPairs / 32 * kFewExperts];  // of an expert, in the warps before
    Several<int, 1> sums[32];
  } grouping;
};

/// The choice stays as it is.
struct NoRule {
  __device__ void operator()() const {}
};

/// The pairs of an expert: how many, and where they begin in the order of experts.
struct ExpertPairs {
  int count = 0;
  int first = 0;
};
/// Stores all that RouteFewArgs names but tiles. `rule`, by all threads, may change the choice
/// before tokens are grouped; it may use the scratch, and stores what it changes. Returns the pairs
/// of the thread's expert. By all threads; the scratch is free again.
template <int kPerLane, typename Rule = NoRule>
__device__ __forceinline__ ExpertPairs RouteTokens(const RouteFewArgs& args, RoutedPairs& routed,
                                                   RouteScratch<kPerLane>& scratch,
                                                   const Rule& rule = {}) {
  constexpr int kWarps = RouteScratch<kPerLane>::kWarps;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int e = threadIdx.x;
  const int experts = args.routing.num_experts;
  const int pairs = args.tokens * args.routing.top_k;
  int32_t* const ids = routed.ids;
  if (args.given_ids != nullptr) {
    TakeGiven(args, pairs, ids, routed.weights);
  } else if (warp < kWarps) {
    ChooseAll<kPerLane, kWarps>(args, warp, lane, scratch.keys[warp], ids, routed.weights);
  }
  if (args.shared_slots != nullptr && e < args.tokens) args.shared_slots[e] = pairs + e;
  __syncthreads();
  rule();

  const int in_use = (pairs + 31) / 32;
  uint16_t* const before = scratch.grouping.before;
  for (int i = e; i < in_use * experts; i += kTileThreads) before[i] = 0;
  __syncthreads();
  int rank[kRounds];
  RankPairs(ids, pairs, in_use, experts, before, rank);
  __syncthreads();
  ExpertPairs mine;
  mine.count = e < experts ? SumWarps(before, in_use, experts, e) : 0;
  Several<int, 1> total;
  mine.first = SumBefore(Several<int, 1>{mine.count}, scratch.grouping.sums, &total).v[0];
  if (e < experts) {
    routed.firsts[e] = mine.first;
    args.groups.firsts[e] = mine.first;
    args.groups.counts[e] = mine.count;
  }
  __syncthreads();
  PlacePairs(args, ids, pairs, experts, before, routed.firsts, rank, routed.sorted);
  __syncthreads();
  if (args.tally != nullptr) {
    CountCall(args, mine.count, pairs, routed.weights, routed.sorted + mine.first);
    __syncthreads();
  }
  return mine;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_ROUTE_TOKENS_CUH_
