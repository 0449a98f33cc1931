// The state with which a prediction begins (predict_next.cuh), read before the preceding kernels
// have ended; and how it learns from the outcome of the last prediction.
#ifndef MOERT_KERNELS_CUDA_CACHE_KNOWN_LAYER_CUH_
#define MOERT_KERNELS_CUDA_CACHE_KNOWN_LAYER_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/cache/find_victims.cuh"
#include "kernels/cuda/cache/served_prefetch.h"
#include "kernels/cuda/cache/served_slots.cuh"

namespace moert::cuda {

/// Shared memory of a prediction.
struct PredictScratch {
  alignas(ServedExpert) uint8_t rows[kFewExperts * sizeof(ServedExpert)];
  double worth[kFewExperts];
  float probability[kFewExperts];  // that the expert is wanted
  float wish[kFewExperts];         // the same for candidates, else negative
  VictimScratch leaving;
  int32_t places[kFewExperts];   // empty slots, then those of victims
  int32_t victims[kFewExperts];  // the experts in them; -1: none
  uint8_t held[kFewExperts];
  float kth[kFewTokens];
  LeastKey most, least;  // of a fill: absent and worth most; idle and worth least
  int came[kHitBins], seen[kHitBins];
  alignas(HitLine) uint8_t lines[kHitBins * sizeof(HitLine)];
  alignas(HitCounts) uint8_t curves[2][kHitBins * sizeof(HitCounts)];  // the layer's, all layers'
  __device__ HitCounts* curve() { return reinterpret_cast<HitCounts*>(curves[0]); }
  __device__ HitCounts* all() { return reinterpret_cast<HitCounts*>(curves[1]); }
  __device__ HitLine* line() { return reinterpret_cast<HitLine*>(lines); }
};

/// The state of the layer and of the thread's expert.
struct KnownLayer {
  ServedLayer layer;
  PredictedCall call;    // that was predicted last
  HitCounts curve, all;  // of the thread's bin
  ServedExpert row;
  ExpertUse use;
  double sum = 0;
  unsigned long long slot = 0;
  bool readable = false;  // whether the device can read its record
  uint32_t wanted = 0;
  uint4 bins{};  // of the first 16 tokens
  int settled = 1;
};
/// All loads are issued together, since each may miss every cache.
__device__ __forceinline__ KnownLayer LoadLayer(const PredictArgs& args) {
  const int e = threadIdx.x;
  KnownLayer known;
  known.layer = LoadFresh(args.layer);
  known.settled = __ldcg(&args.prefetch->settled);
  known.call = LoadFresh(args.call);
  if (e < kHitBins) {
    known.curve = LoadFresh(args.curve + e);
    known.all = LoadFresh(args.all + e);
  }
  if (e >= args.routing.num_experts) return known;
  known.row = LoadFresh(args.rows + e);
  known.slot = __ldcg(reinterpret_cast<const unsigned long long*>(args.slots + e));
  known.readable = args.records[e].host != nullptr;
  if (args.window > 0) {
    known.sum = __ldcg(args.sums + e);
  } else if (args.use != nullptr) {
    known.use = LoadFresh(args.use + e);
  }
  known.wanted = __ldcg(args.wanted + e);
  known.bins = __ldcg(reinterpret_cast<const uint4*>(args.bins + e * kFewTokens));
  return known;
}
/// The worth of the expert's next uses; the same for all where the expert unused for longest
/// leaves.
__device__ __forceinline__ double Worth(const PredictArgs& args, const KnownLayer& known) {
  if (args.window > 0) {
    return ScoreSums::Worth(known.sum, args.routing.top_k, known.layer.calls, args.window);
  }
  return args.use != nullptr ? known.use.Worth() : 0;
}
/// Stores the state where all threads see it. Called by all threads.
__device__ __forceinline__ void ShareLayer(const PredictArgs& args, const KnownLayer& known,
                                           ServedExpert* rows, PredictScratch& scratch) {
  const int e = threadIdx.x;
  if (e < kHitBins) {
    scratch.came[e] = scratch.seen[e] = 0;
    scratch.curve()[e] = known.curve;
    scratch.all()[e] = known.all;
  }
  if (e >= args.routing.num_experts) return;
  rows[e] = known.row;
  scratch.held[e] = known.slot == 0 ? 1 : 0;
  scratch.worth[e] = Worth(args, known);
}

/// Token t's bin of the thread's expert in the call that was predicted last.
__device__ __forceinline__ int BinOf(const PredictArgs& args, const KnownLayer& known, int t) {
  if (t >= 16) return __ldcg(args.bins + threadIdx.x * kFewTokens + t);
  const uint32_t low = t < 4 ? known.bins.x : known.bins.y;
  const uint32_t high = t < 12 ? known.bins.z : known.bins.w;
  return static_cast<int>((t < 8 ? low : high) >> 8 * (t % 4) & 0xff);
}
/// Adds the outcome of that call to the curves. Called by all threads.
__device__ __forceinline__ void LearnCall(const PredictArgs& args, const KnownLayer& known,
                                          PredictScratch& scratch) {
  const int e = threadIdx.x;
  for (int t = 0; e < args.routing.num_experts && t < known.call.tokens; ++t) {
    const int bin = BinOf(args, known, t);
    if (bin >= kHitBins) break;  // it was present
    atomicAdd(scratch.seen + bin, 1);
    if ((known.wanted >> t & 1) != 0) atomicAdd(scratch.came + bin, 1);
  }
  __syncthreads();
  if (e < kHitBins && scratch.seen[e] > 0) {
    scratch.curve()[e].Add(scratch.came[e], scratch.seen[e]);
    scratch.all()[e].Add(scratch.came[e], scratch.seen[e]);
    args.curve[e] = scratch.curve()[e];
    args.all[e] = scratch.all()[e];
  }
}
/// Updates the curves with the outcome of the last call, and computes their lines. Called by all
/// threads.
__device__ __forceinline__ void Learn(const PredictArgs& args, const KnownLayer& known,
                                      PredictScratch& scratch) {
  const int e = threadIdx.x;
  if (known.call.tokens != 0 && known.call.routed == known.call.tokens) {
    LearnCall(args, known, scratch);
  }
  if (e < kHitBins) scratch.line()[e] = HitLine::Of(scratch.curve()[e], scratch.all()[e]);
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_KNOWN_LAYER_CUH_
