// The place of pairs among those of the same expert, in order, within a chunk of pairs. Thread by
// thread a pair: a match ranks it within its warp, counts by warp and expert give the rest.
#ifndef MOERT_KERNELS_CUDA_ROUTE_CHUNK_RANKS_CUH_
#define MOERT_KERNELS_CUDA_ROUTE_CHUNK_RANKS_CUH_

#include "kernels/cuda/route/top_k.cuh"

namespace moert::cuda {

/// Rank of a lane's pair in its warp, whose counts ([experts], zeros so far) are written. id: an
/// expert, or -1: no pair.
__device__ __forceinline__ int RankInWarp(int id, uint16_t* counts) {
  const uint32_t alike = __match_any_sync(kFull, id);
  const int rank = __popc(alike & ((1u << (threadIdx.x % 32)) - 1));
  if (id >= 0 && rank == 0) counts[id] = static_cast<uint16_t>(__popc(alike));
  return rank;
}

/// Turns an expert's counts ([warps, experts]) into sums over the warps before; their total.
__device__ __forceinline__ int SumWarps(uint16_t* counts, int warps, int experts, int e) {
  constexpr int kAtOnce = 8;
  int sum = 0;
  for (int first = 0; first < warps; first += kAtOnce) {
    int count[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      count[i] = first + i < warps ? counts[(first + i) * experts + e] : 0;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < warps) counts[(first + i) * experts + e] = static_cast<uint16_t>(sum);
      sum += count[i];
    }
  }
  return sum;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_ROUTE_CHUNK_RANKS_CUH_
