// How the producer warps of a CTA of family P copy the weights and scales of tiles, and h.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_BRING_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_BRING_CUH_

#include "kernels/cuda/prompt/prompt_gemm.h"
#include "kernels/cuda/prompt/prompt_ring.cuh"
#include "kernels/cuda/prompt/prompt_roles.cuh"
#include "kernels/cuda/prompt/prompt_scale_copies.cuh"
#include "kernels/cuda/prompt/prompt_x.cuh"

namespace moert::cuda {

#ifdef MOERT_PROMPT_PRODUCTS

/// Copies a run of each of the first `there` of kCount row blocks, which are `step` bytes apart.
/// Called by one lane, with addresses that the compiler knows to be the same in the whole warp; it
/// would serialize copies of several lanes.
template <int kCount, int kRun>
__device__ __forceinline__ void BringBlocks(uint32_t to, const uint8_t* from, int step, int there,
                                            uint32_t run, uint32_t full) {
  asm volatile("" : "+r"(step));  // else all addresses of a tile stay in registers
  if (there >= kCount) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) BulkCopy(to + i * kRun, from + i * step, run, full);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < there) BulkCopy(to + i * kRun, from + i * step, run, full);
    }
  }
}

/// How many times a run is copied into its stage: see HasWholeStages.
template <typename Ring>
__device__ __forceinline__ int Times(uint32_t run) {
  return Ring::kWhole && run < Ring::kRun ? 2 : 1;
}

/// Copies the row blocks of helper `helper` of the weights, tile after tile.
template <Packing kPacking, bool kGateUp, int kMost>
__device__ __forceinline__ void HelpWithWeights(const PromptRing<kPacking, kMost>& ring,
                                                const PromptSlot<kMost>* slots, int helper) {
  using Ring = PromptRing<kPacking, kMost>;
  constexpr int kBlocks = Ring::kRowBlocks / (kGateUp ? 2 : 1);  // of a matrix
  constexpr int kCount = Ring::kRowBlocks / PromptHelpers(kGateUp, kMost);
  static_assert(kBlocks % kCount == 0);
  if (!ElectLane()) return;
  const int first = helper * kCount % kBlocks;
  const bool second = helper * kCount >= kBlocks;
  SlotPlace at;
  RingPlace<Ring::kStages> place;
  while (true) {
    Await(ring.SlotFull(at.stage()), at.parity());
    const PromptSlot<kMost>& slot = slots[at.stage()];
    if (slot.columns == 0) return;
    const int k64_bytes = slot.k64s * K64Bytes(kPacking);  // of a row block
    const int block = slot.row_tile * kBlocks + first;
    // Row blocks from `block` to the end of the matrix, negative if the matrix ends before. Not
    // max(0, min()): ptxas 13.0 makes one instruction of it and uses a wrong predicate for the
    // comparison with kCount.
    const int there = slot.row_blocks - block;
    const uint8_t* weights =
        slot.weights + (second ? slot.second_weights : 0) + int64_t{block} * k64_bytes;
#pragma unroll 1
    for (int left = k64_bytes; left > 0; left -= Ring::kRun) {
      const uint32_t run = min(Ring::kRun, left), full = ring.Full(place.stage);
      Await(ring.Empty(place.stage), place.parity ^ 1);
      // A lane that copies nothing arrives too. Otherwise the ring could get phases ahead of it,
      // and the lane would wait for a phase that is over.
      const int times = Times<Ring>(run);
      ArriveExpecting(full, times * (there >= kCount ? kCount * run : there > 0 ? there * run : 0));
      for (int i = 0; i < times; ++i) {
        BringBlocks<kCount, Ring::kRun>(
            ring.Weights(place.stage) + helper * kCount * Ring::kRun + i * run, weights, k64_bytes,
            there, run, full);
      }
      weights += Ring::kRun;
      place.Next();
    }
    Arrive(ring.SlotEmpty(at.stage()));
    at.Next();
  }
}

/// Scales or sums of a tile's columns that are copied with a stage of down: for piece p, row at[p]
/// of the unit's h_columns (PromptGemmArgs); negative: none.
template <Packing kPacking, bool kGateUp, int kPieces>
struct StageFloats {
  int at[kPieces];
  uint32_t bytes = 0;

  /// For the stage that begins with piece `piece`.
  template <typename Slot>
  __device__ __forceinline__ StageFloats(const Slot& slot, int piece, int columns) {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      at[p] = -1;
      if constexpr (!kGateUp && HasColumnFloats(kPacking)) {
        at[p] = ColumnFloats<kPacking>(slot, piece + p);
        bytes += at[p] < 0 ? 0 : columns * 4;
      }
    }
  }
  template <typename Ring, typename Slot>
  __device__ __forceinline__ void Copy(const Ring& ring, uint32_t stage, const Slot& slot,
                                       int columns, uint32_t full) const {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      if (at[p] < 0) continue;
      BulkCopy(ring.Floats(stage, p), slot.of_columns + int64_t{at[p]} * columns, columns * 4,
               full);
    }
  }
};

/// Copies weights, scales and, for down, h, tile after tile; without the weights that helpers copy.
template <Packing kPacking, bool kGateUp, int kMost>
__device__ __forceinline__ void BringWeights(const PromptRing<kPacking, kMost>& ring,
                                             const PromptSlot<kMost>* slots) {
  using Ring = PromptRing<kPacking, kMost>;
  constexpr int kPieces = Ring::kPieces;
  constexpr int kMatrices = kGateUp ? 2 : 1;
  constexpr int kBlocks = Ring::kRowBlocks / kMatrices;  // of a matrix
  if (!ElectLane()) return;
  SlotPlace at;
  RingPlace<Ring::kStages> place;
  while (true) {
    Await(ring.SlotFull(at.stage()), at.parity());
    const PromptSlot<kMost>& slot = slots[at.stage()];
    const int columns = slot.columns;
    if (columns == 0) return;
    const int k64_bytes = slot.k64s * K64Bytes(kPacking);  // of a row block
    const int blocks = min(kBlocks, slot.row_blocks - slot.row_tile * kBlocks);
    const uint8_t* weights = slot.weights + int64_t{slot.row_tile} * kBlocks * k64_bytes;
    const int second = slot.second_weights;
    StageScaleCopies<Ring, kPacking, kGateUp, PromptSlot<kMost>> scales(slot);
    const int pieces = (slot.k64s + PieceK64s(kPacking) - 1) / PieceK64s(kPacking);
    const int stages = (pieces + kPieces - 1) / kPieces;
#pragma unroll 1
    for (int k = 0; k < stages; ++k) {
      Await(ring.Empty(place.stage), place.parity ^ 1);
      const uint32_t run = min(Ring::kRun, k64_bytes - k * Ring::kRun);
      const uint32_t full = ring.Full(place.stage);
      const uint32_t tokens = kGateUp ? 0 : min(kPieces, pieces - k * kPieces) * columns * 128;
      const StageFloats<kPacking, kGateUp, kPieces> floats(slot, k * kPieces, columns);
      const uint32_t weight_bytes =
          PromptHelpers(kGateUp, kMost) == 0 ? Times<Ring>(run) * kMatrices * blocks * run : 0;
      ArriveExpecting(full, weight_bytes + tokens + floats.bytes + scales.Bytes(k));
      if constexpr (!kGateUp) {
        BulkCopy(ring.Tokens(place.stage), slot.h + k * (kPieces * columns * 128), tokens, full);
        floats.Copy(ring, place.stage, slot, columns, full);
      }
      if constexpr (PromptHelpers(kGateUp, kMost) == 0) {
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) {
          for (int i = 0; i < Times<Ring>(run); ++i) {
            BringBlocks<kBlocks, Ring::kRun>(
                ring.Weights(place.stage) + m * kBlocks * Ring::kRun + i * run,
                weights + (m != 0 ? second : 0), k64_bytes, blocks, run, full);
          }
        }
        weights += Ring::kRun;
      }
      scales.Copy(k, ring.Scales(place.stage, 0),
                  [full](uint32_t to, const uint8_t* from, uint32_t bytes) {
                    BulkCopy(to, from, bytes, full);
                  });
      place.Next();
    }
    Arrive(ring.SlotEmpty(at.stage()));
    at.Next();
  }
}
#endif

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_BRING_CUH_
