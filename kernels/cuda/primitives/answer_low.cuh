// Which misses of a call are answered by a lower version, by one CTA of kTileThreads, a thread an
// expert (LowVersions).
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_ANSWER_LOW_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_ANSWER_LOW_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/primitives/rank_slots.cuh"
#include "kernels/cuda/serve_misses.h"

namespace moert::cuda {

struct LowAnswered {
  bool mine = false;  // the thread's expert
  int all = 0;        // of thread 0: how many
};

/// By one thread: takes the `asked` experts in their order, as far as their requests may lose them.
/// experts: [asked], then whether each was taken. Returns how many were.
__device__ __forceinline__ int TakeInOrder(const ServeMissesArgs& args, int asked,
                                           int32_t* experts) {
  const LowCall& call = args.low.call;
  int taken = 0, slots_taken = 0;
  double mass = 0, worst = 0;
  for (int i = 0; i < asked; ++i) {
    const int e = experts[i], count = args.groups.counts[e];
    const int32_t* slots = args.groups.sorted + args.groups.firsts[e];
    experts[i] = call.Take(slots, count) ? 1 : 0;
    if (experts[i] == 0) continue;
    ++taken;
    slots_taken += count;
    for (int j = 0; j < count; ++j) mass += static_cast<double>(call.weights[slots[j]]);
    worst = fmax(worst, call.WorstShare(slots, count));
  }
  if (taken == 0) return 0;
  ServedTally& tally = *args.tally;
  tally.low += taken;
  tally.slots_low += slots_taken;
  tally.mass_low += mass;
  tally.worst_low_share = fmax(tally.worst_low_share, worst);
  return taken;
}

/// Enters the call into the accounts and decides. `count`: tokens of the thread's expert; `miss`:
/// it is missing. By all threads; the scratch is free again.
__device__ __forceinline__ LowAnswered AnswerLow(const ServeMissesArgs& args, bool miss, int count,
                                                 RankScratch& scratch) {
  const int e = threadIdx.x;
  const LowCall& call = args.low.call;
  for (int64_t row = e; row < args.tokens; row += kTileThreads) {
    call.EnterAccountOf(row, args.tokens);
  }
  __syncthreads();
  const bool asks =
      miss && WorthAnsweringLow(call.Cost(args.groups.sorted + args.groups.firsts[e], count),
                                args.low.patience);
  if (e < args.experts) scratch.missing[e] = asks ? count : 0;
  const int asked = __syncthreads_count(asks ? 1 : 0);
  LowAnswered answered;
  if (asked == 0) return answered;
  const int rank = asks ? MissRank(scratch.missing, args.experts, e) : 0;
  if (asks) scratch.places[rank] = e;
  __syncthreads();
  if (e == 0) answered.all = TakeInOrder(args, asked, scratch.places);
  __syncthreads();
  answered.mine = asks && scratch.places[rank] != 0;
  __syncthreads();
  return answered;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_ANSWER_LOW_CUH_
