// ARC's lists in shared memory, by one CTA: all threads rank and copy, one goes through the lists.
#ifndef MOERT_KERNELS_CUDA_CACHE_ARC_CALL_CUH_
#define MOERT_KERNELS_CUDA_CACHE_ARC_CALL_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/cache/rank_slots.cuh"
#include "kernels/cuda/cache/serve_misses.h"

namespace moert::cuda {

static_assert(sizeof(ArcNode) == sizeof(LeavingKey), "nodes lie in the place of keys");
constexpr int kArcWords = sizeof(ArcState) / sizeof(unsigned long long);
static_assert(kArcWords * sizeof(unsigned long long) == sizeof(ArcState));

/// A word of the state by each of the first threads; of others 0.
__device__ __forceinline__ unsigned long long ReadArcWord(const ArcState* from) {
  if (threadIdx.x >= kArcWords) return 0;
  return __ldcg(reinterpret_cast<const unsigned long long*>(from) + threadIdx.x);
}
__device__ __forceinline__ void WriteArcWord(ArcState* to, unsigned long long word) {
  if (threadIdx.x < kArcWords) reinterpret_cast<unsigned long long*>(to)[threadIdx.x] = word;
}
/// From shared into device memory. By all threads.
__device__ __forceinline__ void StoreArc(const ArcView& lists, int experts, ArcState* state,
                                         ArcNode* nodes) {
  const int e = threadIdx.x;
  if (e < experts) nodes[e] = lists.nodes[e];
  if (e < kArcWords) {
    WriteArcWord(state, reinterpret_cast<const unsigned long long*>(lists.state)[e]);
  }
}

/// The next to leave of those with `allowed`, of which there is one: it may not again. By one
/// thread.
__device__ __forceinline__ int TakeVictim(const ArcView& lists, int incoming, int experts,
                                          uint8_t* allowed) {
  int victim = lists.Victim(incoming, allowed);
  for (int e = 0; victim < 0 && e < experts; ++e) {
    if (allowed[e] != 0) victim = e;  // whom no list has
  }
  allowed[victim] = 0;
  lists.Evicted(victim);
  return victim;
}

/// What has become of the prefetched records of a call, in their order.
struct SettledRecords {
  int32_t end[kMostPrefetched], expert[kMostPrefetched], victim[kMostPrefetched];
};

/// As RankSlots, by ARC's lists, which learn what the call does. `settled`: `listed` records;
/// allowed: [experts] to use. By all threads; scratch.keys are the lists'.
__device__ __forceinline__ void RankByArc(const ArcView& lists, const SettledRecords& settled,
                                          int listed, const ServedCounts& call, int wanted,
                                          const Standing& mine, const ServedExpert& row,
                                          const StandingBefore& before, int experts,
                                          uint8_t* allowed, RankScratch& scratch, int* miss_rank,
                                          int* victim_rank) {
  constexpr uint8_t kMay = 1;
  const int e = threadIdx.x;
  const int copies = call.copies();
  if (e < experts) allowed[e] = mine.idle ? kMay : 0;
  // Keys first, then who has them.
  auto* const asked = reinterpret_cast<uint32_t*>(scratch.places);
  const uint32_t key = mine.miss ? MissKey(lists.counts[e], e) : 0;
  const uint32_t arc_key = mine.wanted ? ArcKey(lists.counts[e], e) : 0;
  if (mine.miss) scratch.missing[before.misses] = key;
  if (mine.wanted) asked[before.wanted] = arc_key;
  __syncthreads();
  if (mine.miss) *miss_rank = RankOf(scratch.missing, call.misses, key);
  const int place = mine.wanted ? RankOf(asked, wanted, arc_key) : 0;
  __syncthreads();
  if (mine.miss) scratch.missing[*miss_rank] = e;
  if (mine.wanted) scratch.places[place] = e;
  __syncthreads();
  if (e == 0) lists.Request(scratch.places, wanted);
  __syncthreads();
  if (mine.free) scratch.places[before.free] = e;
  if (e == 0) {
    for (int r = call.free; r < copies; ++r) {
      scratch.places[r] = TakeVictim(lists, scratch.missing[r], experts, allowed);
    }
    for (int i = 0; i < listed; ++i) {
      if (settled.end[i] == static_cast<int32_t>(PrefetchEnd::kUnderWay)) {
        lists.Inserted(settled.expert[i], /*prefetch=*/true);
      }
    }
    for (int r = 0; r < copies; ++r) lists.Inserted(scratch.missing[r], /*prefetch=*/false);
  }
  __syncthreads();
  if (mine.idle && allowed[e] == 0) {
    for (int r = call.free; r < copies; ++r) {
      if (scratch.places[r] == e) *victim_rank = r - call.free;
    }
  }
  __syncthreads();
  if (mine.idle && allowed[e] == 0) scratch.places[call.free + *victim_rank] = row.slot;
  __syncthreads();
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_ARC_CALL_CUH_
