// Finds which experts leave first, by one CTA of whole warps, a thread per expert. Few experts
// leave in a call, so each is found as the least of those that remain, without ranking all experts.
#ifndef MOERT_KERNELS_CUDA_CACHE_FIND_VICTIMS_CUH_
#define MOERT_KERNELS_CUDA_CACHE_FIND_VICTIMS_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/cache/serve_misses.h"

namespace moert::cuda {

/// The lane with the least key among the lanes that are `in`, the first of equals; -1: none is.
/// Called by a warp.
__device__ __forceinline__ int LeastOfWarp(const LeavingKey& key, bool in) {
  uint32_t least = __ballot_sync(~0U, in);
  const uint32_t words[] = {static_cast<uint32_t>(key.worth >> 32),
                            static_cast<uint32_t>(key.worth), static_cast<uint32_t>(key.use >> 32),
                            static_cast<uint32_t>(key.use)};
#pragma unroll
  for (const uint32_t word : words) {
    if ((least & (least - 1)) == 0) break;  // one is left
    const bool may = least >> threadIdx.x % 32 & 1;
    const uint32_t low = __reduce_min_sync(~0U, may ? word : ~0U);
    least = __ballot_sync(~0U, may && word == low);
  }
  return __ffs(static_cast<int>(least)) - 1;
}

/// The least key of each warp, in shared memory. Two buffers alternate, so one barrier per round is
/// enough.
struct VictimScratch {
  alignas(LeavingKey) uint8_t keys[2][32 * sizeof(LeavingKey)];
  int32_t experts[2][32];  // -1: none
};

/// The rank of the thread's expert, if it is `in`, among the `count` experts with the least keys,
/// in LeavingKey's order, the lower index first of equals; else kFewExperts. At least `count`
/// experts are `in`. Called by all threads; the scratch is free after a barrier. On an H200 one,
/// four and sixteen of 512 leave in 0.7, 2.3 and 8.5 us; cub::BlockMergeSort takes 7.7
/// (gpu.cub_test [rates]).
__device__ __forceinline__ int FindVictims(const LeavingKey& key, bool in, int count,
                                           VictimScratch& scratch) {
  const int e = threadIdx.x, lane = e % 32, warp = e / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  int place = kFewExperts;
  int mine = LeastOfWarp(key, in);
  for (int r = 0; r < count; ++r) {
    auto* const keys = reinterpret_cast<LeavingKey*>(scratch.keys[r % 2]);
    int32_t* const experts = scratch.experts[r % 2];
    if (lane == max(mine, 0)) {
      keys[warp] = key;
      experts[warp] = mine < 0 ? -1 : e;
    }
    __syncthreads();
    const bool some = lane < warps && experts[lane] >= 0;
    const LeavingKey theirs = some ? keys[lane] : LeavingKey{};
    const int victim = experts[max(LeastOfWarp(theirs, some), 0)];
    if (e == victim) {
      place = r;
      in = false;
    }
    if (victim / 32 == warp) mine = LeastOfWarp(key, in);
  }
  return place;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_FIND_VICTIMS_CUH_
