// Which rows of a tile of family P a consumer warp has.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_WARP_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_WARP_CUH_

#include "kernels/cuda/prompt/prompt_ring.cuh"

namespace moert::cuda {

/// A warp's 16 rows of a block are those of a row block. Where a group has only one block of gate
/// and up, they are eight channels of gate and the same of up (kHalves); or, of four groups, two
/// warps have row blocks of gate and two the same of up (kPairs), and become halves by an exchange
/// when the sums are there (PromptStore).
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
  int half;  // of the row blocks' 16 rows

  __device__ __forceinline__ PromptWarp(int g, int w, int l)
      : group(g), warp(w), lane(l), half(w & 1) {}

  /// The row block of rows g of block b: among those of a tile, gate's before up's.
  __device__ __forceinline__ int RowBlock(int b) const {
    if (kHalves) return 2 * group + (warp >> 1);
    if (kPairs) return kOfGate * (warp >> 1) + 2 * group + (warp & 1);
    return kGateUp ? kOfGate * b + 4 * group + warp : 4 * (kBlocks * group + b) + warp;
  }
  /// Rows g and g + 8 of block b, likewise.
  __device__ __forceinline__ int FirstRow(int b) const {
    return RowBlock(b) * 16 + (kHalves ? half * 8 : 0) + (lane >> 2);
  }
  __device__ __forceinline__ int SecondRow(int b) const {
    return FirstRow(b) + (kHalves ? kOfGate * 16 : 8);
  }
  /// The matrix of block b's rows: gate's 0, up's 1; below 0: first rows those of one, second rows
  /// those of the other, or all down's.
  __device__ __forceinline__ int Matrix(int b) const {
    return !kGateUp || kHalves ? -1 : kPairs ? warp >> 1 : b;
  }
  /// Halves, before or behind an exchange: which eight of the group's 32 channels they are, and
  /// gate's row block in which they lie, among those of a tile.
  __device__ __forceinline__ int Eight() const {
    return kPairs ? 2 * (warp & 1) + (warp >> 1) : warp;
  }
  __device__ __forceinline__ int EightRowBlock() const { return 2 * group + (Eight() >> 1); }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_WARP_CUH_
