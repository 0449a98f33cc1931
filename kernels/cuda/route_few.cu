// Few tokens: experts of every token, tokens by expert and the tiles of the products, by one CTA.
#include <cuda_runtime.h>

#include "kernels/cuda/primitives/choose_experts.cuh"
#include "kernels/cuda/primitives/chunk_ranks.cuh"
#include "kernels/cuda/primitives/expert_tiles.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/selection_tally.cuh"

namespace moert::cuda {
namespace {

constexpr int kMaxPairs = kFewTokens * kMaxTopK;

/// The experts' formats, into the L1 cache: tiles want them at once.
__device__ __forceinline__ void PrefetchFormats(const MakeTilesArgs& tiles) {
  for (int e = threadIdx.x % 32; e <= tiles.experts; e += 32) {
    PrefetchFormat(tiles.formats + tiles.handles[e].format);
  }
}

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

template <int kPerLane>
__global__ void __launch_bounds__(kTileThreads)
    RouteFewKernel(const __grid_constant__ RouteFewArgs args) {
  TriggerDependentLaunch();
  constexpr int kWarps = kPerLane <= 8 ? 16 : 8;  // that choose; the others' scratch has no room
  __shared__ union Scratch {
    __device__ Scratch() {}
    float keys[kWarps][2][32 * kPerLane];
    uint16_t before[kMaxPairs / 32 * kFewExperts];  // of an expert, in the warps before
    TileScratch<kFewExperts> tiles;
  } scratch;
  __shared__ int32_t ids[kMaxPairs];
  __shared__ float weights[kMaxPairs];
  __shared__ uint16_t sorted[kMaxPairs];
  __shared__ int places[kFewExperts];
  __shared__ Several<int, 1> sums[32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int e = threadIdx.x;
  const int experts = args.routing.num_experts;
  const int pairs = args.tokens * args.routing.top_k;
  GridDependencySync();
  ExpertHandle handle{};  // on its way while experts are chosen
  if (args.makes_tiles && e <= experts && args.tiles.wave.Has(e)) handle = args.tiles.handles[e];
  static_assert(kWarps < kTileThreads / 32);
  if (args.makes_tiles && warp == kTileThreads / 32 - 1) PrefetchFormats(args.tiles);
  if (args.given_ids != nullptr) {
    TakeGiven(args, pairs, ids, weights);
  } else if (warp < kWarps) {
    ChooseAll<kPerLane, kWarps>(args, warp, lane, scratch.keys[warp], ids, weights);
  }
  if (args.shared_slots != nullptr && e < args.tokens) args.shared_slots[e] = pairs + e;
  __syncthreads();

  const int in_use = (pairs + 31) / 32;
  for (int i = e; i < in_use * experts; i += kTileThreads) scratch.before[i] = 0;
  __syncthreads();
  int rank[kRounds];
  RankPairs(ids, pairs, in_use, experts, scratch.before, rank);
  __syncthreads();
  const int count = e < experts ? SumWarps(scratch.before, in_use, experts, e) : 0;
  Several<int, 1> total;
  const int first = SumBefore(Several<int, 1>{count}, sums, &total).v[0];
  if (e < experts) {
    places[e] = first;
    args.groups.firsts[e] = first;
    args.groups.counts[e] = count;
  }
  __syncthreads();
  PlacePairs(args, ids, pairs, experts, scratch.before, places, rank, sorted);
  __syncthreads();  // tiles take the scratch
  if (args.tally != nullptr) CountCall(args, count, pairs, weights, sorted + first);
  if (args.makes_tiles == 0) return;
  const bool shared = e == experts;
  const ExpertTokens tokens{handle, shared ? args.tokens : count,
                            shared ? args.shared_slots : args.groups.sorted + first};
  MakeTiles(
      args.tiles, args.tiles.table, [&](int) { return tokens; }, scratch.tiles);
}

}  // namespace

int LaunchRouteFew(const RouteFewArgs& args, CUstream_st* stream) {
  if (args.tokens > kFewTokens || args.routing.num_experts > kFewExperts ||
      args.routing.top_k > kMaxTopK) {
    return cudaErrorInvalidValue;
  }
  const int experts = args.routing.num_experts;
  const auto kernel = experts <= 64    ? RouteFewKernel<2>
                      : experts <= 128 ? RouteFewKernel<4>
                      : experts <= 256 ? RouteFewKernel<8>
                                       : RouteFewKernel<kFewExperts / 32>;
  return LaunchEarly(kernel, 1, kTileThreads, 0, stream, args);
}

}  // namespace moert::cuda
