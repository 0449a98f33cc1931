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
    const auto* format = reinterpret_cast<const char*>(tiles.formats + tiles.handles[e].format);
    asm volatile("prefetch.global.L1 [%0];" ::"l"(format));
    asm volatile("prefetch.global.L1 [%0];" ::"l"(format + sizeof(DeviceFormat) - 1));
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
  const int experts = args.routing.num_experts, top_k = args.routing.top_k;
  const int pairs = args.tokens * top_k;
  GridDependencySync();
  ExpertHandle handle{};  // on its way while experts are chosen
  if (args.makes_tiles && e <= experts && args.tiles.wave.Has(e)) handle = args.tiles.handles[e];
  static_assert(kWarps < kTileThreads / 32);
  if (args.makes_tiles && warp == kTileThreads / 32 - 1) PrefetchFormats(args.tiles);
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
  if (args.shared_slots != nullptr && e < args.tokens) args.shared_slots[e] = pairs + e;
  __syncthreads();

  const int in_use = (pairs + 31) / 32;
  for (int i = e; i < in_use * experts; i += kTileThreads) scratch.before[i] = 0;
  __syncthreads();
  constexpr int kRounds = (kMaxPairs + kTileThreads - 1) / kTileThreads;
  int rank[kRounds];
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int at = r * kTileThreads + e, of = at / 32;
    if (of < in_use) {
      rank[r] = RankInWarp(at < pairs ? ids[at] : -1, scratch.before + of * experts);
    }
  }
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
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int at = r * kTileThreads + e;
    if (at >= pairs || ids[at] < 0) continue;
    const int place = places[ids[at]] + scratch.before[at / 32 * experts + ids[at]] + rank[r];
    args.groups.sorted[place] = at;
    sorted[place] = static_cast<uint16_t>(at);
  }
  __syncthreads();  // tiles take the scratch
  if (args.tally != nullptr) {
    float mass = 0;
    for (int i = 0; i < count; ++i) mass += weights[sorted[first + i]];
    if (count > 0) AddCall(args.tally + e, count, mass);
    if (e == 0) AddCall(args.tally + experts, pairs, 0);
  }
  if (args.makes_tiles == 0) return;
  const bool shared = e == experts;
  const ExpertTokens tokens{handle, shared ? args.tokens : count,
                            shared ? args.shared_slots : args.groups.sorted + first};
  MakeTiles(
      args.tiles, [&](int) { return tokens; }, scratch.tiles);
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
