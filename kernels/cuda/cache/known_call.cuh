// The state with which a decision of the device begins (serve_call.cuh), read before the kernels in
// front have ended, and the call's part in it.
#ifndef MOERT_KERNELS_CUDA_CACHE_KNOWN_CALL_CUH_
#define MOERT_KERNELS_CUDA_CACHE_KNOWN_CALL_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/cache/serve_misses.h"
#include "kernels/cuda/cache/served_slots.cuh"
#include "kernels/cuda/route/expert_tiles.cuh"

namespace moert::cuda {

/// The state of the thread's expert, and of the slot and the prefetched record of its number, as
/// the call begins. It is read before the kernels in front have ended. Its writers have finished:
/// decisions of the layer's calls before this one and predictions for it end before the weighted
/// sum of the call that they belong to begins (CopyBranch::Join), and that is in front.
struct Known {
  ServedRecord record;
  ExpertHandle shared;  // of the thread behind the experts', where products are the device's
  ServedLayer layer;
  ServedExpert row;
  ExpertUse use;
  ExpertUse::Call call;
  double sum = 0;
  float oldest = 0;
  uint8_t* slot = nullptr;
  bool unsettled = false;  // of the list: for all threads
  bool listed = false;
  PrefetchedRecord prefetched;  // but for how far it has come
  bool closed = false;          // and its state, where the list is closed
  ServedLayer other;            // of the thread's number, where layers give each other slots
  uint64_t lends = kNobodyLends;
  // For the warp: the least of these, the first place that has no slot.
  uint64_t least_lends = kNobodyLends;
  int hole = 0;
  bool cpu_idle = false;  // of thread 0: the CPU may be given misses
};

/// Where the sum of scores of the thread's expert lets go of a score, after `calls` calls.
__device__ __forceinline__ float* Oldest(const ServeMissesArgs& args, int64_t calls) {
  return args.history + ScoreSums::Row(calls, args.window) * args.experts + threadIdx.x;
}

/// The part of Known that lies in memory of the layer, of others, and of the thread's expert: all
/// loads are under way together, since each waits for memory that no cache may have. settled: the
/// layer's list, listed: its records; other_settled: the list of the layer of the thread's number.
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

/// kPlain: no miss is answered low. Kernels of such calls alone have no code and no registers for
/// that.
template <bool kPlain>
__device__ __forceinline__ Known ReadKnown(const ServeMissesArgs& args) {
  const int e = threadIdx.x;
  int settled = 1, listed = 0, other_settled = 1;
  Known known = LoadKnown<kPlain>(args, &settled, &listed, &other_settled);
  // An answer that cannot be seen yet is taken for none.
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

/// Adds the call to what the rule goes by of the thread's expert, `count` of whose tokens chose it.
/// Returns what the expert is worth.
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
