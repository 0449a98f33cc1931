// Predicts the experts of the next layer by its gate on this layer's input, and lists the records
// to prefetch for it (served_prefetch.h): by one CTA, a thread per expert.
#ifndef MOERT_KERNELS_CUDA_CACHE_PREDICT_NEXT_CUH_
#define MOERT_KERNELS_CUDA_CACHE_PREDICT_NEXT_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/cache/find_victims.cuh"
#include "kernels/cuda/cache/known_layer.cuh"
#include "kernels/cuda/cache/served_prefetch.h"
#include "kernels/cuda/cache/served_slots.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/route/choose_experts.cuh"

namespace moert::cuda {

/// Turns a token's logits into scores. Returns the k-th best. Called by a warp.
template <int kPerLane>
__device__ __forceinline__ float ScoreToken(const DeviceRouting& routing, const ScoreRows& rows) {
  const int lane = threadIdx.x % 32;
  float key[kPerLane], score[kPerLane];
  Score(routing, lane, rows.scores, rows, key, score);
  uint32_t taken = 0;
  float kth = 0;
  for (int j = 0; j < routing.top_k; ++j) {
    const int e = Highest(score, taken, routing.num_experts, lane);
    kth = Take(score, e, lane, &taken);
  }
  return kth;
}

/// The probability that some token wants the thread's expert. scores: [tokens, experts], as
/// args.scores, in any memory. Stores the expert's bins for Learn.
__device__ __forceinline__ float Probability(const PredictArgs& args, const float* scores,
                                             PredictScratch& scratch, bool present) {
  constexpr float kSmallest = 1.17549435e-38F;
  const int e = threadIdx.x;
  uint8_t* bins = args.bins + e * kFewTokens;
  float unused = 1;
  for (int t = 0; t < args.tokens; ++t) {
    const float ratio = scores[t * args.routing.num_experts + e] / fmaxf(scratch.kth[t], kSmallest);
    const int bin = HitBin(ratio);
    unused *= 1 - scratch.line()[bin].Probability(GuessedHits(ratio));
    bins[t] = static_cast<uint8_t>(present ? kHitBins : bin);
  }
  return 1 - unused;
}

/// The rank of the thread's expert by `wish`: the largest first, of equals the lower index.
__device__ __forceinline__ int WishRank(const PredictScratch& scratch, int experts) {
  const int e = threadIdx.x;
  const float mine = scratch.wish[e];
  int rank = 0;
  for (int other = 0; other < experts; ++other) {
    const float theirs = scratch.wish[other];
    rank += theirs > mine || (theirs == mine && other < e) ? 1 : 0;
  }
  return rank;
}

/// Settles a list that no call has settled; its copies are over.
__device__ __forceinline__ void SettleLeft(const PredictArgs& args, int64_t tick,
                                           ServedExpert* rows) {
  const LayerPrefetch& list = *args.prefetch;
  const int i = threadIdx.x;
  if (i < list.count) {
    const PrefetchedRecord& record = list.records[i];
    SettlePrefetch(record, EndOfPrefetch(record.state, record.done, /*wanted=*/false), tick, rows);
  }
}

/// Enters the thread's slot, which is empty, among the first places.
__device__ __forceinline__ void PlaceFree(PredictScratch& scratch) {
  const int slot = threadIdx.x, at = FreeBefore(scratch.held, slot);
  scratch.places[at] = slot;
  scratch.victims[at] = -1;
}

/// Fills in `most` places that may be taken: empty slots, then those of idle experts in the order
/// in which they leave. Called by all threads.
__device__ __forceinline__ void RankPlaces(const ServedExpert* rows, int most, bool free,
                                           int num_free, bool idle, PredictScratch& scratch) {
  const int e = threadIdx.x;
  if (free) PlaceFree(scratch);
  const LeavingKey key = idle ? KeyOfLeaving(rows[e], scratch.worth[e]) : LeavingKey{};
  const int turn = FindVictims(key, idle, most - num_free, scratch.leaving);
  if (num_free + turn < most) {
    scratch.places[num_free + turn] = rows[e].slot;
    scratch.victims[num_free + turn] = e;
  }
  __syncthreads();
}

/// Finds the expert for a fill (PrefetchedRecord::fill), which takes the first place; -1: none.
/// Called by all threads.
__device__ __forceinline__ int FindFill(bool absent, int num_free, bool idle,
                                        PredictScratch& scratch) {
  const double worth = absent || idle ? scratch.worth[threadIdx.x] : 0;
  FindLeast(absent, -worth, scratch.most);
  FindLeast(idle, worth, scratch.least);
  __syncthreads();
  const uint64_t most = LeastOf(scratch.most), least = LeastOf(scratch.least);
  if (most == kNobodyLends || (num_free == 0 && least == kNobodyLends)) return -1;
  const double leaving = num_free > 0 ? 0 : scratch.worth[NumberOf(least)];
  const int fill = NumberOf(most);
  return ClearlyWorthMore(scratch.worth[fill], leaving) ? fill : -1;
}

__device__ __forceinline__ PrefetchedRecord Listed(const PredictArgs& args, int place, int victim,
                                                   bool fill) {
  PrefetchedRecord record;
  const ServedRecord of = args.records[threadIdx.x];
  record.copy = {of.host, args.slots[place], of.bytes};
  record.expert = static_cast<int32_t>(threadIdx.x);
  record.victim = victim;
  record.slot = place;
  record.fill = fill ? 1 : 0;
  return record;
}

/// Begins a list of `count` records. An empty list leaves nothing to settle. Called by one thread.
__device__ __forceinline__ void BeginList(const PredictArgs& args, int count) {
  args.prefetch->count = count;
  args.prefetch->settled = count == 0 ? 1 : 0;
  *args.call = {args.tokens, 0};
}

/// Lists nothing, since the host decides. Called by one thread.
__device__ __forceinline__ void ListNothing(const PredictArgs& args) {
  args.prefetch->count = 0;
  args.prefetch->settled = 1;
  args.call->tokens = 0;
}

/// The state of the thread's expert, and of the slot with its index, before the call; and counts
/// over all threads.
struct Prospects {
  bool present, absent, candidate, free, idle;  // absent: and readable
  int candidates, num_free, num_idle;
};

/// Lists the candidates that pay, up to `most`, likeliest first. Returns how many. Called by all
/// threads.
__device__ __forceinline__ int ListCandidates(const PredictArgs& args, const ServedLayer& layer,
                                              const ServedExpert* rows, const Prospects& p,
                                              float probability, int most,
                                              PredictScratch& scratch) {
  __shared__ int first_refused;
  const int e = threadIdx.x, experts = args.routing.num_experts;
  int rank = kMostPrefetched;
  if (p.candidates > 0) {
    if (e < experts) scratch.wish[e] = p.candidate ? probability : -1;
    __syncthreads();
    if (p.candidate) rank = WishRank(scratch, experts);
    RankPlaces(rows, most, p.free, p.num_free, p.idle, scratch);
  }
  if (e == 0) first_refused = most;
  __syncthreads();
  if (p.candidate) {
    const int victim = rank < most ? scratch.victims[rank] : -1;
    if (victim >= 0 && !PrefetchPays(probability, scratch.probability[victim], scratch.worth[e],
                                     scratch.worth[victim], layer.inserted)) {
      atomicMin(&first_refused, rank);
    }
  }
  __syncthreads();
  const int count = first_refused;
  if (rank < count) {
    args.prefetch->records[rank] =
        Listed(args, scratch.places[rank], scratch.victims[rank], /*fill=*/false);
  }
  return count;
}

/// Lists a fill and returns its expert; -1: there is none. `most`: places that are ranked already.
/// Called by all threads.
__device__ __forceinline__ int ListFill(const PredictArgs& args, const ServedExpert* rows,
                                        const Prospects& p, int most, PredictScratch& scratch) {
  const int e = threadIdx.x;
  const int fill = FindFill(p.absent, p.num_free, p.idle, scratch);
  if (fill >= 0 && most == 0) RankPlaces(rows, 1, p.free, p.num_free, p.idle, scratch);
  if (e == fill) {
    args.prefetch->records[0] = Listed(args, scratch.places[0], scratch.victims[0], true);
  }
  return fill;
}

/// Computes each token's scores, also in `kept` unless it is null, and its k-th best. Called by all
/// warps.
template <int kPerLane>
__device__ __forceinline__ void ScoreTokens(const PredictArgs& args, float* kept,
                                            PredictScratch& scratch) {
  const int warp = threadIdx.x / 32;
  for (int t = warp; t < args.tokens; t += static_cast<int>(blockDim.x) / 32) {
    const int first = t * args.routing.num_experts;
    const ScoreRows rows{args.scores + first, kept != nullptr ? kept + first : nullptr};
    const float kth = ScoreToken<kPerLane>(args.routing, rows);
    if (threadIdx.x % 32 == 0) scratch.kth[t] = kth;
  }
}

/// The whole prediction of a layer. The table and the outcome of the last prediction are read
/// before the preceding kernels have ended: decisions that write them ended before the last
/// weighted sum (known_call.cuh). kept: shared memory for the scores, or null. Called by all
/// threads, of whole warps, at least as many as experts.
template <int kPerLane>
__device__ __forceinline__ void PredictNext(const PredictArgs& args, float* kept,
                                            PredictScratch& scratch) {
  auto* const rows = reinterpret_cast<ServedExpert*>(scratch.rows);
  const int e = threadIdx.x;
  const int experts = args.routing.num_experts;
  const bool is_expert = e < experts;
  const KnownLayer known = LoadLayer(args);
  const ServedLayer& layer = known.layer;
  const bool unsettled = known.settled == 0;
  if (layer.lent != 0) {
    ShareLayer(args, known, rows, scratch);
    __syncthreads();
    Learn(args, known, scratch);
  }
  GridDependencySync();
  if (layer.lent == 0) {
    if (e == 0) ListNothing(args);
    return;
  }
  ScoreTokens<kPerLane>(args, kept, scratch);
  if (unsettled) SettleLeft(args, layer.tick, rows);
  __syncthreads();

  Prospects p;
  p.present = is_expert && rows[e].slot >= 0;
  float probability = 0;
  if (is_expert) {
    if (unsettled) args.rows[e] = rows[e];
    probability = Probability(args, kept != nullptr ? kept : args.scores, scratch, p.present);
    scratch.probability[e] = probability;
    if (p.present) scratch.held[rows[e].slot] = 1;
  }
  p.absent = is_expert && !p.present && known.readable;
  p.candidate = p.absent && probability >= args.least;
  p.candidates = __syncthreads_count(p.candidate);
  const bool fills = args.fills != 0 && layer.elsewhere != 0;
  if (p.candidates == 0 && !fills) {  // the usual case
    if (e == 0) BeginList(args, 0);
    return;
  }
  p.free = is_expert && scratch.held[e] == 0;
  p.num_free = __syncthreads_count(p.free);
  p.idle = p.present && probability < LikelyWanted(args.tokens, args.least);
  p.num_idle = __syncthreads_count(p.idle);
  const int most = min(min(p.candidates, p.num_free + p.num_idle), kMostPrefetched);
  const int count = ListCandidates(args, layer, rows, p, probability, most, scratch);
  const int fill = count == 0 && fills ? ListFill(args, rows, p, most, scratch) : -1;
  if (e != 0) return;
  BeginList(args, fill >= 0 ? 1 : count);
  if (count == 0 && fill < 0) args.layer->elsewhere = 0;  // no expert for a fill
  args.tally->listed += static_cast<uint64_t>(count);
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_PREDICT_NEXT_CUH_
