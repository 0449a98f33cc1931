// Assigns missing experts to slots and chooses the experts that leave: counts and ranks by one CTA
// of kTileThreads. A thread has an expert and the slot with the same index.
#ifndef MOERT_KERNELS_CUDA_CACHE_RANK_SLOTS_CUH_
#define MOERT_KERNELS_CUDA_CACHE_RANK_SLOTS_CUH_

#include <cstdint>

#include "kernels/cuda/cache/find_victims.cuh"
#include "kernels/cuda/cache/serve_misses.h"
#include "kernels/cuda/route/expert_tiles.cuh"

namespace moert::cuda {

/// The state of the thread's expert, and of the slot with its index, in the call.
struct Standing {
  bool miss = false, wanted = false;
  bool idle = false;  // may leave
  bool free = false;  // the slot is empty
};
/// The sums of the threads before this one.
struct StandingBefore {
  int misses, free, wanted;
};
/// Counts over all threads, and over those before this one. Called by all threads.
__device__ __forceinline__ ServedCounts CountStandings(const Standing& mine, int* wanted,
                                                       StandingBefore* before) {
  const int warps = static_cast<int>(blockDim.x) / 32;
  __shared__ uint32_t votes[2][kTileThreads / 32];
  const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t misses = __ballot_sync(~0U, mine.miss), free = __ballot_sync(~0U, mine.free);
  const uint32_t idle = __ballot_sync(~0U, mine.idle), asked = __ballot_sync(~0U, mine.wanted);
  if (lane == 0) {
    votes[0][warp] = __popc(misses) | __popc(free) << 16;
    votes[1][warp] = __popc(idle) | __popc(asked) << 16;
  }
  __syncthreads();
  const uint32_t first = lane < warps ? votes[0][lane] : 0;
  const uint32_t second = lane < warps ? votes[1][lane] : 0;
  const uint32_t all_first = __reduce_add_sync(~0U, first);
  const uint32_t all_second = __reduce_add_sync(~0U, second);
  const uint32_t warps_before = __reduce_add_sync(~0U, lane < warp ? first : 0);
  const uint32_t lanes_before = (1U << lane) - 1;
  before->misses = static_cast<int>(warps_before & 0xffff) + __popc(misses & lanes_before);
  before->free = static_cast<int>(warps_before >> 16) + __popc(free & lanes_before);
  before->wanted = static_cast<int>(__reduce_add_sync(~0U, lane < warp ? second >> 16 : 0)) +
                   __popc(asked & lanes_before);
  ServedCounts call;
  call.misses = static_cast<int>(all_first & 0xffff);
  call.free = static_cast<int>(all_first >> 16);
  call.idle = static_cast<int>(all_second & 0xffff);
  *wanted = static_cast<int>(all_second >> 16);
  return call;
}

/// Whether so few experts leave that they are found one by one: each takes about as long as
/// comparing 32 keys. Otherwise all experts are ranked at once.
__device__ __forceinline__ bool FewVictims(int leaving, int experts) {
  return leaving * 32 <= experts;
}

/// The ranking's keys and places, in shared memory.
struct RankScratch {
  __device__ RankScratch() {}
  union {
    alignas(LeavingKey) uint8_t keys[kFewExperts * sizeof(LeavingKey)];
    VictimScratch victims;
  };
  uint32_t missing[kFewExperts];
  int32_t places[kFewExperts];
};
/// Fills `places` with the slots that misses take, the free ones first, then those of the victims
/// in their order. Finds the rank of the thread's expert, `row`, among the misses or the victims,
/// if it is one. Called by all threads.
__device__ __forceinline__ void RankSlots(const ServedCounts& call, const Standing& mine,
                                          const ServedExpert& row, int count, double worth,
                                          const StandingBefore& before, int experts,
                                          RankScratch& scratch, int* miss_rank, int* victim_rank) {
  const int e = threadIdx.x;
  auto* const keys = reinterpret_cast<LeavingKey*>(scratch.keys);
  const int leaving = min(call.misses - call.free, call.idle);
  const LeavingKey key = mine.idle ? KeyOfLeaving(row, worth) : LeavingKey{};
  const bool few = FewVictims(leaving, experts);
  if (!few && e < experts) keys[e] = key;
  if (mine.miss) scratch.missing[before.misses] = MissKey(count, e);
  if (mine.free) scratch.places[before.free] = e;
  __syncthreads();
  int turn = kFewExperts;
  if (few) {
    turn = FindVictims(key, mine.idle, leaving, scratch.victims);
  } else if (mine.idle) {
    turn = VictimRank(keys, experts, e);
  }
  if (turn < leaving) {
    *victim_rank = turn;
    scratch.places[call.free + turn] = row.slot;
  }
  if (mine.miss) *miss_rank = RankOf(scratch.missing, call.misses, MissKey(count, e));
  __syncthreads();
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_RANK_SLOTS_CUH_
