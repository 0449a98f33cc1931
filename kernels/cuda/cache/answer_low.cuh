// Decides which misses of a call a lower version answers (LowVersions), by one CTA of kTileThreads,
// a thread per expert.
#ifndef MOERT_KERNELS_CUDA_CACHE_ANSWER_LOW_CUH_
#define MOERT_KERNELS_CUDA_CACHE_ANSWER_LOW_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/cache/rank_slots.cuh"
#include "kernels/cuda/cache/serve_misses.h"
#include "kernels/cuda/route/add_to_tally.cuh"

namespace moert::cuda {

struct LowAnswered {
  bool mine = false;  // whether the thread's expert is
  int all = 0;        // how many
};

/// The pairs of a call by expert, as SlotGroups, in any memory.
template <typename Slot>
struct CallPairs {
  const Slot* sorted;
  const int32_t* firsts;
};

/// Takes the `asked` experts in order, as far as the bounds of their requests allow. experts:
/// [asked], overwritten with whether each was taken; counts: [experts]. Returns how many were
/// taken. Called by one thread.
template <typename Slot>
__device__ __forceinline__ int TakeInOrder(const LowCall& call, const CallPairs<Slot>& pairs,
                                           const int32_t* counts, int asked, int32_t* experts,
                                           ServedTally& tally) {
  int taken = 0, slots_taken = 0;
  double mass = 0, worst = 0;
  for (int i = 0; i < asked; ++i) {
    const int e = experts[i], count = counts[e];
    const Slot* const slots = pairs.sorted + pairs.firsts[e];
    experts[i] = call.Take(slots, count) ? 1 : 0;
    if (experts[i] == 0) continue;
    ++taken;
    slots_taken += count;
    for (int j = 0; j < count; ++j) mass += static_cast<double>(call.weights[slots[j]]);
    worst = fmax(worst, call.WorstShare(slots, count));
  }
  if (taken == 0) return 0;
  AddTo(&tally.low, taken);
  AddTo(&tally.slots_low, slots_taken);
  atomicAdd(&tally.mass_low, mass);
  RaiseTo(&tally.worst_low_share, worst);
  return taken;
}

/// Enters the call into the accounts and decides. counts: [experts]; `miss`: the thread's expert,
/// of `count` tokens, is missing. Called by all threads; the scratch is free afterwards.
template <typename Slot>
__device__ __forceinline__ LowAnswered AnswerLow(const ServeMissesArgs& args, const LowCall& call,
                                                 const CallPairs<Slot>& pairs,
                                                 const int32_t* counts, bool miss, int count,
                                                 RankScratch& scratch) {
  __shared__ int asked;
  const int e = threadIdx.x;
  if (e == 0) asked = 0;
  for (int64_t row = e; row < args.tokens; row += kTileThreads) {
    call.EnterAccountOf(row, args.tokens);
  }
  __syncthreads();
  const bool asks = miss && WorthAnsweringLow(call.Cost(pairs.sorted + pairs.firsts[e], count),
                                              args.low.patience);
  if (asks) scratch.missing[atomicAdd(&asked, 1)] = MissKey(count, e);
  __syncthreads();
  LowAnswered answered;
  const int all = asked;
  if (all == 0) return answered;
  const int rank = asks ? RankOf(scratch.missing, all, MissKey(count, e)) : 0;
  if (asks) scratch.places[rank] = e;
  __syncthreads();
  if (e == 0) asked = TakeInOrder(call, pairs, counts, all, scratch.places, *args.tally);
  __syncthreads();
  answered.all = asked;
  answered.mine = asks && scratch.places[rank] != 0;
  __syncthreads();
  return answered;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_ANSWER_LOW_CUH_
