// Few tokens: experts of every token, tokens by expert and the tiles of the products, by one CTA.
#include <cuda_runtime.h>

#include "kernels/cuda/primitives/choose_experts.cuh"
#include "kernels/cuda/primitives/expert_tiles.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/selection_tally.cuh"

namespace moert::cuda {
namespace {

constexpr int kMaxPairs = kFewTokens * kMaxTopK;

/// Calls f(i) for every pair of `expert`, in order. ids: shared, up to whole fours.
template <typename F>
__device__ __forceinline__ void ForPairsOf(int expert, const int32_t* ids, int pairs, F f) {
#pragma unroll 2
  for (int i = 0; i < pairs; i += 4) {
    const int4 four = *reinterpret_cast<const int4*>(ids + i);
    if (four.x == expert) f(i);
    if (four.y == expert) f(i + 1);
    if (four.z == expert) f(i + 2);
    if (four.w == expert) f(i + 3);
  }
}

template <int kPerLane>
__global__ void __launch_bounds__(kTileThreads)
    RouteFewKernel(const __grid_constant__ RouteFewArgs args) {
  TriggerDependentLaunch();
  constexpr int kWarps = kPerLane <= 8 ? 16 : 8;  // that choose; the others' scratch has no room
  __shared__ union Scratch {
    __device__ Scratch() {}
    float keys[kWarps][2][32 * kPerLane];
    TileScratch tiles;
  } scratch;
  __shared__ __align__(16) int32_t ids[kMaxPairs + 4];
  __shared__ float weights[kMaxPairs];
  __shared__ Several<int, 1> sums[32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int e = threadIdx.x;
  const int experts = args.routing.num_experts, top_k = args.routing.top_k;
  const int pairs = args.tokens * top_k;
  GridDependencySync();
  ExpertHandle handle{};  // on its way while experts are chosen
  if (args.makes_tiles && e <= experts && args.tiles.wave.Has(e)) handle = args.tiles.handles[e];
  if (args.given_ids != nullptr) {
    for (int i = e; i < pairs; i += kTileThreads) {
      const int id = args.given_ids[i];
      ids[i] = args.ids[i] = id >= 0 && id < experts ? id : -1;
      weights[i] = args.weights[i] = args.given_weights[i];
      if (args.used_ids != nullptr) args.used_ids[i] = ids[i];
    }
  } else if (warp < kWarps) {
    for (int token = warp; token < args.tokens; token += kWarps) {
      const Chosen chosen = ChooseExperts<kPerLane>(args.routing, args.scores + token * experts,
                                                    scratch.keys[warp][0], scratch.keys[warp][1]);
      __syncwarp();
      if (lane >= top_k) continue;
      const int at = token * top_k + lane;
      ids[at] = args.ids[at] = chosen.id;
      weights[at] = args.weights[at] = chosen.weight;
    }
  }
  if (e < 4) ids[pairs + e] = -1;
  if (args.shared_slots != nullptr && e < args.tokens) args.shared_slots[e] = pairs + e;
  __syncthreads();

  int count = 0;
  float mass = 0;
  if (e < experts) {
    ForPairsOf(e, ids, pairs, [&](int i) {
      ++count;
      mass += weights[i];
    });
  }
  Several<int, 1> total;
  const int first = SumBefore(Several<int, 1>{count}, sums, &total).v[0];
  if (e < experts) {
    args.groups.firsts[e] = first;
    args.groups.counts[e] = count;
    if (count > 0) {
      int at = first;
      ForPairsOf(e, ids, pairs, [&](int i) { args.groups.sorted[at++] = i; });
      if (args.tally != nullptr) AddCall(args.tally + e, count, mass);
    }
    if (e == 0 && args.tally != nullptr) AddCall(args.tally + experts, pairs, 0);
  }
  if (args.makes_tiles == 0) return;
  const bool shared = e == experts;
  MakeTiles(args.tiles, handle, shared ? args.tokens : count,
            shared ? args.shared_slots : args.groups.sorted + first, scratch.tiles);
}

}  // namespace

int LaunchRouteFew(const RouteFewArgs& args, CUstream_st* stream) {
  if (args.tokens > kFewTokens || args.routing.num_experts > kMaxExperts ||
      args.routing.top_k > kMaxTopK) {
    return cudaErrorInvalidValue;
  }
  const int experts = args.routing.num_experts;
  const auto kernel = experts <= 64    ? RouteFewKernel<2>
                      : experts <= 128 ? RouteFewKernel<4>
                      : experts <= 256 ? RouteFewKernel<8>
                                       : RouteFewKernel<kMaxExperts / 32>;
  return LaunchEarly(kernel, 1, kTileThreads, 0, stream, args);
}

}  // namespace moert::cuda
