// Which experts of a layer come into which slots, in whose place: counted and ranked by one CTA of
// kTileThreads, a thread an expert and the slot of its number.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_RANK_SLOTS_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_RANK_SLOTS_CUH_

#include <cstdint>

#include "kernels/cuda/primitives/expert_tiles.cuh"
#include "kernels/cuda/serve_misses.h"

namespace moert::cuda {

/// How the thread's expert and the slot of its number stand in the call.
struct Standing {
  bool miss = false, wanted = false;
  bool idle = false;  // may leave
  bool free = false;  // the slot is nobody's
};
/// Over all threads; `free_before`: of the threads before this one. By all threads.
__device__ __forceinline__ ServedCounts CountStandings(const Standing& mine, int* wanted,
                                                       int* free_before) {
  constexpr int kWarps = kTileThreads / 32;
  __shared__ uint32_t votes[2][kWarps];
  const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t misses = __ballot_sync(~0U, mine.miss), free = __ballot_sync(~0U, mine.free);
  const uint32_t idle = __ballot_sync(~0U, mine.idle), asked = __ballot_sync(~0U, mine.wanted);
  if (lane == 0) {
    votes[0][warp] = __popc(misses) | __popc(free) << 16;
    votes[1][warp] = __popc(idle) | __popc(asked) << 16;
  }
  __syncthreads();
  const uint32_t first = lane < kWarps ? votes[0][lane] : 0;
  const uint32_t second = lane < kWarps ? votes[1][lane] : 0;
  const uint32_t all_first = __reduce_add_sync(~0U, first);
  const uint32_t all_second = __reduce_add_sync(~0U, second);
  *free_before = static_cast<int>(__reduce_add_sync(~0U, lane < warp ? first >> 16 : 0)) +
                 __popc(free & ((1U << lane) - 1));
  ServedCounts call;
  call.misses = static_cast<int>(all_first & 0xffff);
  call.free = static_cast<int>(all_first >> 16);
  call.idle = static_cast<int>(all_second & 0xffff);
  *wanted = static_cast<int>(all_second >> 16);
  return call;
}

/// What is ranked by, in shared memory.
struct RankScratch {
  alignas(LeavingKey) uint8_t keys[kFewExperts * sizeof(LeavingKey)];
  int32_t missing[kFewExperts];
  int32_t places[kFewExperts];
};
/// Fills `places` with the slots that misses take, the free ones first, then those of the victims
/// in their order; says in which turn the thread's expert, `row`, comes or goes. By all threads.
__device__ __forceinline__ void RankSlots(const ServedCounts& call, const Standing& mine,
                                          const ServedExpert& row, int count, double worth,
                                          int free_before, int experts, RankScratch& scratch,
                                          int* miss_rank, int* victim_rank) {
  const int e = threadIdx.x;
  auto* const keys = reinterpret_cast<LeavingKey*>(scratch.keys);
  if (e < experts) {
    keys[e] = mine.idle ? KeyOfLeaving(row, worth) : LeavingKey{};
    scratch.missing[e] = mine.miss ? count : 0;
  }
  if (mine.free) scratch.places[free_before] = e;
  __syncthreads();
  if (mine.idle && call.misses > call.free) {
    *victim_rank = VictimRank(keys, experts, e);
    scratch.places[call.free + *victim_rank] = row.slot;
  }
  if (mine.miss) *miss_rank = MissRank(scratch.missing, experts, e);
  __syncthreads();
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_RANK_SLOTS_CUH_
