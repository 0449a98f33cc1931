// The shared memory of family P's products by mma.sync, and how it is filled.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_MMA_RING_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_MMA_RING_CUH_

#include <cstdint>

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/packing.cuh"
#include "kernels/cuda/prompt/prompt_ring.cuh"
#include "kernels/cuda/prompt/prompt_scale_copies.cuh"
#include "kernels/cuda/prompt/prompt_warp.cuh"
#include "kernels/cuda/prompt/prompt_x.cuh"

namespace moert::cuda {

constexpr int kMmaThreads = 256;
/// A tile is split between the two groups of four warps: by rows (2) or by columns (1).
MOERT_HOST_DEVICE constexpr int MmaRowGroups(int most) { return most == 64 ? 2 : 1; }
/// Columns that a warp has room for.
MOERT_HOST_DEVICE constexpr int MmaColumns(int most) { return most * MmaRowGroups(most) / 2; }

/// Columns of a tile's first group (of either group, if they split rows), in units of 16.
MOERT_HOST_DEVICE constexpr int MmaSteps(int most, int columns) {
  return MmaRowGroups(most) == 2 ? (columns + 15) / 16 : (columns + 31) / 32;
}

/// A warp's part of a tile.
template <bool kGateUp, int kMost>
struct MmaWarp : PromptWarp<kGateUp, kMost, MmaRowGroups(kMost)> {
  using Rows = PromptWarp<kGateUp, kMost, MmaRowGroups(kMost)>;
  int first;  // first column of the warp
  int end;    // one past its last column

  __device__ __forceinline__ MmaWarp(int columns, int warp, int lane)
      : Rows(MmaRowGroups(kMost) == 2 ? warp / 4 : 0, warp % 4, lane), first(0), end(columns) {
    if (MmaRowGroups(kMost) == 2) return;
    const int half = MmaSteps(kMost, columns) * 16;
    first = warp / 4 * half;
    if (warp < 4) end = half;
  }
};

/// A stage has 64 k, or 128 k for products in 8 bits: tokens in the layout that wgmma reads,
/// weights, scales, and the floats of columns. When a tile's products are done, the ring holds its
/// results in bf16.
template <Packing kPacking, int kMost>
struct MmaRing {
  static constexpr int kGroups = 2;
  static constexpr int kPieces = 1;
  static constexpr int kRowBlocks = PromptRowBlocks(kMost);
  static constexpr int kTokens = kMost * 128;
  static constexpr int kRun = PieceK64s(kPacking) * K64Bytes(kPacking);  // of a row block
  static constexpr int kWeights = kRowBlocks * kRun;
  static constexpr int kPieceScales = PromptScaleBytes(kPacking, kRowBlocks);
  static constexpr int kFloats = HasColumnFloats(kPacking) ? kMost * 4 : 0;
  static constexpr int kStageBytes = kTokens + kWeights + kPieceScales + kFloats;
  static constexpr int kMostBytes = kLeastShared - static_cast<int>(sizeof(PromptSlot<kMost>)) - 16;
  static constexpr int kStages = kMostBytes / kStageBytes < 3 ? kMostBytes / kStageBytes : 3;
  static constexpr int kBytes = kStages * kStageBytes;
  static_assert(kStages >= 2 && kStageBytes % 128 == 0);
  static_assert(kRowBlocks * 16 * 2 * kMost <= kBytes);

  uint32_t base;
  __device__ __forceinline__ uint32_t Tokens(int stage) const { return base + stage * kStageBytes; }
  __device__ __forceinline__ uint32_t Weights(int stage) const { return Tokens(stage) + kTokens; }
  __device__ __forceinline__ uint32_t Scales(int stage) const { return Weights(stage) + kWeights; }
  __device__ __forceinline__ uint32_t Floats(int stage) const {
    return Scales(stage) + kPieceScales;
  }
};

/// A tile's copies into the ring, by all threads of a CTA.
template <Packing kPacking, bool kGateUp, int kMost>
class MmaLoads {
  using Ring = MmaRing<kPacking, kMost>;

 public:
  __device__ __forceinline__ MmaLoads(const PromptGemmArgs& args, const PromptSlot<kMost>& slot,
                                      const Ring& ring)
      : args_(args), slot_(slot), ring_(ring), scales_(slot) {}

  /// Issues the copies of piece k. Pieces must come in order.
  __device__ __forceinline__ void Begin(int k, int stage) {
    if constexpr (kGateUp) {
      Gather(k, ring_.Tokens(stage));
    } else {
      const int bytes = slot_.columns * 128;
      CopyRow(slot_.h + int64_t{k} * bytes, bytes, ring_.Tokens(stage), threadIdx.x, kMmaThreads);
    }
    BringWeights(k, ring_.Weights(stage));
    if (threadIdx.x < 32) {
      scales_.Copy(k, ring_.Scales(stage), [](uint32_t to, const uint8_t* from, int bytes) {
        CopyRow(from, bytes, to, threadIdx.x, 32);
      });
    }
    if constexpr (HasColumnFloats(kPacking)) BringFloats(k, ring_.Floats(stage));
  }

 private:
  /// Copies a multiple of 16 bytes, by `threads` threads.
  __device__ __forceinline__ static void CopyRow(const void* from, int bytes, uint32_t to,
                                                 int thread, int threads) {
    for (int i = thread * 16; i < bytes; i += threads * 16) {
      CopyAsync16(to + i, static_cast<const uint8_t*>(from) + i, true);
    }
  }
  __device__ __forceinline__ void Gather(int k, uint32_t to) const {
    const uint32_t piece = threadIdx.x % 8;
    const uint8_t* const x = X<kPacking>(args_) + int64_t{k} * 128 + piece * 16;
#pragma unroll
    for (int from = 0; from < kMost; from += kMmaThreads / 8) {
      const int column = from + static_cast<int>(threadIdx.x / 8);
      if (column >= slot_.columns) continue;
      CopyAsync16(to + column * 128 + ((piece ^ (column & 7)) * 16),
                  x + slot_.rows[GatherPlace(kMost, column)], true);
    }
  }
  __device__ __forceinline__ void BringWeights(int k, uint32_t to) const {
    constexpr int kBlocks = Ring::kRowBlocks / (kGateUp ? 2 : 1);  // of a matrix
    constexpr int kBytes = K64Bytes(kPacking), kCopies = Ring::kRun / 16;
    const int k64 = k * PieceK64s(kPacking);
#pragma unroll
    for (int from = 0; from < Ring::kRowBlocks * kCopies; from += kMmaThreads) {
      const int i = from + static_cast<int>(threadIdx.x);
      if (Ring::kRowBlocks * kCopies % kMmaThreads != 0 && i >= Ring::kRowBlocks * kCopies) break;
      const int in_tile = i / kCopies;
      const bool second = in_tile >= kBlocks;
      const int block = slot_.row_tile * kBlocks + (second ? in_tile - kBlocks : in_tile);
      const bool there = block < slot_.row_blocks &&  // else zeros
                         (PieceK64s(kPacking) == 1 || k64 + i % kCopies * 16 / kBytes < slot_.k64s);
      const int64_t at = (second ? slot_.second_weights : 0) +
                         (there ? (int64_t{block} * slot_.k64s + k64) * kBytes : 0);
      CopyAsync16(to + i * 16, slot_.weights + at + i % kCopies * 16, there);
    }
  }
  __device__ __forceinline__ void BringFloats(int k, uint32_t to) const {
    const int at = ColumnFloats<kPacking>(slot_, k);
    if (at < 0) return;
    const uint8_t* const x = X<kPacking>(args_) + XFloats<kPacking>(args_) + at * 4;
    for (int c = static_cast<int>(threadIdx.x); c < slot_.columns; c += kMmaThreads) {
      const void* from =
          kGateUp ? x + slot_.rows[GatherPlace(kMost, c)]
                  : static_cast<const void*>(slot_.of_columns + int64_t{at} * slot_.columns + c);
      CopyAsync4(to + c * 4, from);
    }
  }

  const PromptGemmArgs& args_;
  const PromptSlot<kMost>& slot_;
  const Ring& ring_;
  StageScaleCopies<Ring, kPacking, kGateUp, PromptSlot<kMost>> scales_;
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_MMA_RING_CUH_
