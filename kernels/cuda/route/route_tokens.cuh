// Chooses the experts of few tokens and groups the tokens by expert, in one CTA of kTileThreads.
#ifndef MOERT_KERNELS_CUDA_ROUTE_ROUTE_TOKENS_CUH_
#define MOERT_KERNELS_CUDA_ROUTE_ROUTE_TOKENS_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/route/add_to_tally.cuh"
#include "kernels/cuda/route/choose_experts.cuh"
#include "kernels/cuda/route/expert_tiles.cuh"
#include "kernels/cuda/route/top_k.cuh"

namespace moert::cuda {

constexpr int kMaxPairs = kFewTokens * kMaxTopK;

/// Takes the ids and weights that the host has given; ids outside [0, experts) become -1.
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

/// Chooses the experts and weights of the warp's part of the tokens. Called by up to kWarps warps.
/// kept: [tokens, experts] receives the scores too, or null; `keys`: the warp's scratch.
template <int kPerLane, int kWarps>
__device__ __forceinline__ void ChooseAll(const RouteFewArgs& args, int warp, int lane, float* kept,
                                          float (&keys)[2][32 * kPerLane], int32_t* ids,
                                          float* weights) {
  const int top_k = args.routing.top_k;
  const int warps = min(kWarps, static_cast<int>(blockDim.x) / 32);
  for (int token = warp; token < args.tokens; token += warps) {
    const int first = token * args.routing.num_experts;
    float* const row = args.scores + first;
    const ScoreRows rows{row, kept != nullptr ? kept + first : nullptr};
    const Chosen chosen = ChooseExperts<kPerLane>(args.routing, token, row, rows, keys[0], keys[1]);
    __syncwarp();
    if (lane >= top_k) continue;
    const int at = token * top_k + lane;
    ids[at] = args.ids[at] = chosen.id;
    weights[at] = args.weights[at] = chosen.weight;
  }
}

constexpr int kRounds = (kMaxPairs + kTileThreads - 1) / kTileThreads;

/// Ranks each pair of this thread: how many pairs of the same expert come before it in its warp.
/// `before`: zeros; receives the number of pairs of each expert in each warp of pairs.
__device__ __forceinline__ void RankPairs(const int32_t* ids, int pairs, int in_use, int experts,
                                          uint16_t* before, int (&rank)[kRounds]) {
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int at = r * kTileThreads + static_cast<int>(threadIdx.x), of = at / 32;
    if (of < in_use) rank[r] = RankInWarp(at < pairs ? ids[at] : -1, before + of * experts);
  }
}

/// Stores the pairs by expert. `before`: now sums over the warps before; places: where an expert's
/// pairs begin.
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

/// Stores the tally of the thread's expert, or, in the thread after the experts, of the layer:
/// `known`, the tally before the call, plus the call. mass: of the expert's `count` pairs.
__device__ __forceinline__ void CountCall(const RouteFewArgs& args, const SelectionTally& known,
                                          int count, int pairs, float mass) {
  const int e = threadIdx.x, experts = args.routing.num_experts;
  if (e == experts) {
    args.tally[e] = WithCall(known, pairs, 0);
  } else if (e < experts && count > 0) {
    args.tally[e] = WithCall(known, count, mass);
  }
}

/// Whether a call is so small that every thread looks at all pairs, which takes less time than
/// counting and prefix sums.
__host__ __device__ __forceinline__ bool LooksAtAll(int pairs, int experts) {
  return pairs * experts <= 1 << 13;
}
/// A thread's findings in the ids of a call.
struct LookedAt {
  int count = 0;   // pairs of its expert
  int first = 0;   // pairs of experts before it
  int place = 0;   // rank by expert of the pair with its index
  float mass = 0;  // of its expert, in the order of pairs
};
__device__ __forceinline__ LookedAt LookAtAll(const int32_t* ids, const float* weights, int pairs) {
  const auto mine = static_cast<uint32_t>(threadIdx.x);
  const uint32_t own = mine < pairs ? ids[mine] : ~0U;
  LookedAt found;
#pragma unroll 4
  for (uint32_t i = 0; i < pairs; ++i) {
    const uint32_t id = ids[i];  // as unsigned, -1 is above all
    found.first += id < mine ? 1 : 0;
    found.place += id < own || (id == own && i < mine) ? 1 : 0;
    if (id != mine) continue;
    ++found.count;
    found.mass += weights[i];
  }
  return found;
}

/// The results of RouteTokens, in shared memory, of calls of up to kPairs pairs.
template <int kPairs = kMaxPairs>
struct RoutedPairs {
  __device__ RoutedPairs() {}
  int32_t ids[kPairs];
  float weights[kPairs];
  uint16_t sorted[kPairs];      // by expert
  int32_t firsts[kFewExperts];  // where the pairs of an expert begin
};
/// Shared memory of RouteTokens.
template <int kPerLane>
union RouteScratch {
  static constexpr int kWarps = kPerLane <= 8 ? 16 : 8;  // that choose; there is no room for more
  __device__ RouteScratch() {}
  float keys[kWarps][2][32 * kPerLane];
  struct {
    uint16_t before[kMaxPairs / 32 * kFewExperts];  // of an expert, in the warps before
    Several<int, 1> sums[32];
  } grouping;
};

/// No rule: the choice stays as it is.
struct NoRule {
  __device__ void operator()() const {}
};

/// The pairs of an expert: how many, and where they begin in the order of experts.
struct ExpertPairs {
  int count = 0;
  int first = 0;
};
/// Groups pairs by expert, in a call that LooksAtAll. known: as CountCall. Called by all threads.
template <int kPairs>
__device__ __forceinline__ ExpertPairs GroupFew(const RouteFewArgs& args, int pairs,
                                                const SelectionTally& known,
                                                RoutedPairs<kPairs>& routed) {
  const int e = threadIdx.x, experts = args.routing.num_experts;
  LookedAt found;
  if (e < max(experts, pairs)) found = LookAtAll(routed.ids, routed.weights, pairs);
  if (e < experts) {
    routed.firsts[e] = found.first;
    args.groups.firsts[e] = found.first;
    args.groups.counts[e] = found.count;
  }
  if (e < pairs && routed.ids[e] >= 0) {
    args.groups.sorted[found.place] = e;
    routed.sorted[found.place] = static_cast<uint16_t>(e);
  }
  if (args.tally != nullptr) CountCall(args, known, found.count, pairs, found.mass);
  __syncthreads();
  return {e < experts ? found.count : 0, found.first};
}

/// The same for any call.
template <int kPerLane, int kPairs>
__device__ __forceinline__ ExpertPairs GroupAny(const RouteFewArgs& args, int pairs,
                                                const SelectionTally& known,
                                                RoutedPairs<kPairs>& routed,
                                                RouteScratch<kPerLane>& scratch) {
  const int e = threadIdx.x, experts = args.routing.num_experts;
  const int32_t* const ids = routed.ids;
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
  if (args.tally == nullptr) return mine;
  float mass = 0;
  for (int i = 0; i < mine.count; ++i) mass += routed.weights[routed.sorted[mine.first + i]];
  CountCall(args, known, mine.count, pairs, mass);
  __syncthreads();
  return mine;
}

/// Stores all results that RouteFewArgs names, except tiles. `rule`, called by all threads, may
/// change the choice before tokens are grouped; it may use the scratch, and stores what it changes.
/// kept: as ChooseAll. Returns the pairs of the thread's expert. Called by all threads; the scratch
/// is free afterwards.
template <int kPerLane, int kPairs, typename Rule = NoRule>
__device__ __forceinline__ ExpertPairs RouteTokens(const RouteFewArgs& args,
                                                   RoutedPairs<kPairs>& routed,
                                                   RouteScratch<kPerLane>& scratch,
                                                   float* kept = nullptr, const Rule& rule = {}) {
  constexpr int kWarps = RouteScratch<kPerLane>::kWarps;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int e = threadIdx.x;
  const int experts = args.routing.num_experts;
  const int pairs = args.tokens * args.routing.top_k;
  SelectionTally known{};  // on its way while experts are chosen
  if (args.tally != nullptr && e <= experts) known = args.tally[e];
  if (args.given_ids != nullptr) {
    TakeGiven(args, pairs, routed.ids, routed.weights);
  } else if (warp < kWarps) {
    ChooseAll<kPerLane, kWarps>(args, warp, lane, kept, scratch.keys[warp], routed.ids,
                                routed.weights);
  }
  if (args.shared_slots != nullptr && e < args.tokens) args.shared_slots[e] = pairs + e;
  __syncthreads();
  rule();
  return LooksAtAll(pairs, experts) ? GroupFew(args, pairs, known, routed)
                                    : GroupAny(args, pairs, known, routed, scratch);
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_ROUTE_ROUTE_TOKENS_CUH_
