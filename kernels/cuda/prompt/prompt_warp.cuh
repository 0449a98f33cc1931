// Which rows of a tile of family P a consumer warp has.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_WARP_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_WARP_CUH_

#include "kernels/cuda/prompt/prompt_ring.cuh"

namespace moert::cuda {

/// A warp's 16 rows of a block are those of a row block. Where a group has only one block for gate
/// and up, they are eight channels of gate and the same channels of up (kHalves). With four groups,
/// two warps of a group have row blocks of gate instead, and two the same row blocks of up
/// (kPairs); when the sums are complete, an exchange brings them into the form of kHalves
/// (PromptStore).
template <bool kGateUp, int kMost, int kGroups>
struct PromptWarp {
  static constexpr int kBlocks = PromptRowBlocks(kMost) / (4 * kGroups);
  static constexpr bool kPairs = kGateUp && kGroups == 4;
  static constexpr bool kHalves = kGateUp && kBlocks == 1 && !kPairs;
  static constexpr int kOfGate = PromptRowBlocks(kMost) / 2;  // row blocks
  static constexpr int kStaging = kPromptStaging / kGroups;   // bytes

  int group;  // of kGroups
  int warp;   // of four
  int lane;
  int half;  // which eight of the row blocks' 16 rows

  __device__ __forceinline__ PromptWarp(int g, int w, int l)
      : group(g), warp(w), lane(l), half(w & 1) {}

  /// The row block that rows g of block b are in, counted within the tile, gate's before up's.
  __device__ __forceinline__ int RowBlock(int b) const {
    if (kHalves) return 2 * group + (warp >> 1);
    if (kPairs) return kOfGate * (warp >> 1) + 2 * group + (warp & 1);
    return kGateUp ? kOfGate * b + 4 * group + warp : 4 * (kBlocks * group + b) + warp;
  }
  /// Rows g and g + 8 of block b, counted within the tile.
  __device__ __forceinline__ int FirstRow(int b) const {
    return RowBlock(b) * 16 + (kHalves ? half * 8 : 0) + (lane >> 2);
  }
  __device__ __forceinline__ int SecondRow(int b) const {
    return FirstRow(b) + (kHalves ? kOfGate * 16 : 8);
  }
  /// The matrix of block b's rows: 0 gate, 1 up; -1: rows g are gate's and rows g + 8 up's, or all
  /// are down's.
  __device__ __forceinline__ int Matrix(int b) const {
    return !kGateUp || kHalves ? -1 : kPairs ? warp >> 1 : b;
  }
  /// For kHalves, and for kPairs after the exchange: which eight of the group's 32 channels the
  /// warp has, and the row block of gate that they are in, counted within the tile.
  __device__ __forceinline__ int Eight() const {
    return kPairs ? 2 * (warp & 1) + (warp >> 1) : warp;
  }
  __device__ __forceinline__ int EightRowBlock() const { return 2 * group + (Eight() >> 1); }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_WARP_CUH_
