// The items of a CTA's share that a warp works on, and its part of K.
#ifndef MOERT_KERNELS_CUDA_FEW_TILE_WALK_CUH_
#define MOERT_KERNELS_CUDA_FEW_TILE_WALK_CUH_

#include "kernels/cuda/few/group_gemm.h"

namespace moert::cuda {

/// The range of K a warp multiplies, in pieces of 64. Begins on an even piece.
struct Slice {
  int begin;
  int end;
};
/// Slice `slice` of 2^log2.
__device__ __forceinline__ Slice SliceOf(int k64s, int log2, int slice) {
  const int pairs = (k64s + 1) / 2;
  return {(pairs * slice >> log2) * 2, min((pairs * (slice + 1) >> log2) * 2, k64s)};
}

/// The items of a tile that one group works on: first, first + 2^groups_log2, ... below end.
struct ItemRange {
  int first;
  int end;
  int groups_log2;

  __device__ __forceinline__ bool empty() const { return first >= end; }
  __device__ __forceinline__ int count() const {
    return (end - first + (1 << groups_log2) - 1) >> groups_log2;
  }
};

/// Walks the tiles of a share. `turn`: items before the tile, of all groups; they are dealt out in
/// one round over all tiles, so that groups get equal shares.
struct TileWalk {
  Position at;
  Position end;
  int turn;

  __device__ __forceinline__ bool done() const {
    return at.tile > end.tile || (at.tile == end.tile && at.item >= end.item);
  }
  __device__ __forceinline__ ItemRange Items(const TileMatrix& m, int warp) const {
    const int slices_log2 = KSlicesLog2(m.k64s);
    const int groups_log2 = kGemmWarpsLog2 - slices_log2;
    const int last = at.tile == end.tile ? end.item : m.items;
    const int behind = ((warp >> slices_log2) - turn) & ((1 << groups_log2) - 1);
    return {at.item + behind, last, groups_log2};
  }
  __device__ __forceinline__ void Next(const ItemRange& range) {
    turn += range.end - at.item;
    at = {at.tile + 1, 0};
  }
};

/// Waits for the warps that share K with this one.
__device__ __forceinline__ void GroupBarrier(int slices_log2, int warp) {
  if (slices_log2 == 0) {
    __syncwarp();
  } else {
    // Barriers 8 to 15 are of two warps, 4 to 7 of four; 0 is the CTA's.
    const int id = (kGemmWarps + warp) >> slices_log2;
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(32 << slices_log2) : "memory");
  }
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_FEW_TILE_WALK_CUH_
