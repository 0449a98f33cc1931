// The state with which a decision of the device begins (serve_call.cuh), read before the preceding
// kernels have ended; and how a call updates the statistics in it.
#ifndef MOERT_KERNELS_CUDA_CACHE_KNOWN_CALL_CUH_
#define MOERT_KERNELS_CUDA_CACHE_KNOWN_CALL_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/cache/serve_misses.h"
#include "kernels/cuda/cache/served_slots.cuh"
#include "kernels/cuda/route/expert_tiles.cuh"

namespace moert::cuda {

/// The state, as the call begins, of the thread's expert, and of the slot and the prefetched record
/// with the thread's index. It is read before the preceding kernels have ended, but its writers
/// have finished: earlier decisions of the layer and predictions for it end before the weighted sum
/// of their own call begins (CopyBranch::Join), and that kernel precedes this one.
struct Known {
  ServedRecord record;
  ExpertHandle shared;  // in the thread after the experts', if the device multiplies
  ServedLayer layer;
  ServedExpert row;
  ExpertUse use;
  ExpertUse::Call call;
  double sum = 0;
  float oldest = 0;
  uint8_t* slot = nullptr;
  bool unsettled = false;  // the prefetch list is not settled; the same in all threads
  bool listed = false;
  PrefetchedRecord prefetched;  // without its progress
  bool closed = false;          // `prefetched` has its final state
  ServedLayer other;            // the layer with the thread's index, if layers lend slots
  uint64_t lends = kNobodyLends;
  // Over the warp: the least `lends`, and the first place that has no slot.
  uint64_t least_lends = kNobodyLends;
  int hole = 0;
  bool cpu_idle = false;  // in thread 0: the CPU may be given misses
};

/// The entry of the history that leaves the score sum of the thread's expert after `calls` calls.
__device__ __forceinline__ float* Oldest(const ServeMissesArgs& args, int64_t calls) {
  return args.history + ScoreSums::Row(calls, args.window) * args.experts + threadIdx.x;
}

/// Loads the state of the layer, of the layer with the thread's index, and of the thread's expert.
/// All loads are issued together, since each may miss every cache. settled: whether the layer's
/// prefetch list is; listed: its records; other_settled: whether the list of the other layer is.
template <bool kPlain>
__device__ __forceinline__ Known LoadKnown(const ServeMissesArgs& args, int* settled, int* listed,
                                           int* other_settled) {
  const int e = threadIdx.x;
  Known known;
  known.layer = LoadFresh(args.layer);
  if (args.prefetch != nullptr) {
    *settled = __ldcg(&args.prefetch->settled);
    *listed = __ldcg(&args.prefetch->count);
    if (e < kMostPrefetched) known.prefetched = LoadFresh(args.prefetch->records + e);
  }
  if (e < args.lenders.layers) {
    known.other = LoadFresh(args.lenders.layer + e);
    *other_settled = __ldcg(&args.lenders.prefetch[e].settled);
  }
  if (e == args.experts && args.shared != nullptr) known.shared = LoadFresh(args.shared);
  if (e >= args.experts) return known;
  if (!kPlain && args.low.records != nullptr) PrefetchToL1(args.low.records + e);
  known.record = args.records[e];
  known.row = LoadFresh(args.rows + e);
  known.slot = reinterpret_cast<uint8_t*>(
      __ldcg(reinterpret_cast<const unsigned long long*>(args.slots + e)));
  if (args.use != nullptr) known.use = LoadFresh(args.use + e);
  if (args.window > 0) known.sum = __ldcg(args.sums + e);
  return known;
}

/// kPlain: no miss is answered low. Kernels for such calls only have no code and no registers for
/// it.
template <bool kPlain>
__device__ __forceinline__ Known ReadKnown(const ServeMissesArgs& args) {
  const int e = threadIdx.x;
  int settled = 1, listed = 0, other_settled = 1;
  Known known = LoadKnown<kPlain>(args, &settled, &listed, &other_settled);
  // An answer that is not visible yet counts as none.
  if (e == 0 && args.cpu.call != nullptr) {
    PrefetchToL1(args.cpu.costs);  // of few tokens
    known.cpu_idle = CpuIdle(*args.cpu.memory.mailbox, LoadFresh(args.cpu.call));
  }
  known.unsettled = known.layer.lent != 0 && settled == 0;
  known.listed = known.unsettled && e < listed;
  if (e < args.lenders.layers) {
    known.lends =
        LenderKey(known.other, other_settled != 0, e, args.lenders.mine, args.lenders.fewest);
  }
  if (args.lenders.layers > 0) {
    known.least_lends = LeastKeyOfWarp(known.lends);
    const bool empty = e < args.experts && known.slot == nullptr;
    known.hole = __reduce_min_sync(~0U, empty ? e : args.experts);
  }
  if (args.use != nullptr) known.call = ExpertUse::Call::Of(known.layer.calls + 1, args.tokens);
  if (e >= args.experts) return known;
  if (args.window > 0) known.oldest = __ldcg(Oldest(args, known.layer.calls));
  if (args.makes_tiles != 0) PrefetchFormat(args.tiles.formats + known.record.format);
  return known;
}

/// Adds the call, `count` of whose tokens chose the thread's expert, to the expert's statistics, by
/// which the rule decides. Returns what the expert is worth.
__device__ __forceinline__ double AddCall(const ServeMissesArgs& args, Known known, int count) {
  const int e = threadIdx.x;
  const float* scores = args.scores == nullptr ? nullptr : args.scores + e;
  if (args.window > 0) {
    ScoreSums::Add(ScoreSums::Of(scores, args.experts, args.tokens, count), &known.oldest,
                   &known.sum);
    *Oldest(args, known.layer.calls) = known.oldest;
    args.sums[e] = known.sum;
    return known.sum;
  }
  if (args.use == nullptr) return 0;
  double sum = count;
  if (scores != nullptr) {
    sum = 0;
#pragma unroll 4
    for (int64_t t = 0; t < args.tokens; ++t) sum += scores[t * args.experts];
    sum *= args.top_k;
  }
  known.use.Add(known.call, count, sum);
  args.use[e] = known.use;
  return known.use.Worth();
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_KNOWN_CALL_CUH_
