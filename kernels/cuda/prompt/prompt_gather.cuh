// How warps of a CTA of family P gather the rows of x that a tile multiplies.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_GATHER_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_GATHER_CUH_

#include "kernels/cuda/primitives/packing.cuh"
#include "kernels/cuda/prompt/prompt_gemm.h"
#include "kernels/cuda/prompt/prompt_ring.cuh"
#include "kernels/cuda/prompt/prompt_roles.cuh"
#include "kernels/cuda/prompt/prompt_x.cuh"

namespace moert::cuda {

#ifdef MOERT_PROMPT_PRODUCTS

/// Brings the scales or sums of a tile's columns in piece k, which is piece p of its stage.
template <Packing kPacking, int kMost>
__device__ __forceinline__ void GatherFloats(const PromptGemmArgs& args,
                                             const PromptRing<kPacking, kMost>& ring,
                                             const PromptSlot<kMost>& slot, int k, int p,
                                             uint32_t stage, int warp) {
  const int at = ColumnFloats<kPacking>(slot, k);
  if (at < 0) return;
  const uint8_t* floats = X<kPacking>(args) + XFloats<kPacking>(args) + at * 4;
#pragma unroll 1
  for (int c = warp * 32 + threadIdx.x % 32; c < slot.columns; c += kGatherWarps * 32) {
    CopyAsync4(ring.Floats(stage, p) + c * 4, floats + slot.rows[GatherPlace(kMost, c)]);
  }
}

/// Copies the thread's 16 bytes of each of its columns, which are every eighth. rows: where their
/// rows of x begin.
template <int kMost>
__device__ __forceinline__ void GatherRows(const uint32_t* rows, int columns, const uint8_t* x,
                                           uint32_t to) {
  constexpr int kFours = PromptPlaces(kMost) / 32;
  constexpr int kAtOnce = kFours == 8 ? 4 : kFours;
  const auto copy = [&](int column, uint32_t row) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + column * 128), "l"(x + row)
                 : "memory");
  };
#pragma unroll
  for (int first = 0; first < kFours; first += kAtOnce) {
    // The begins of several rows are read before the first copy, as the compiler moves no read
    // across a copy.
    uint4 row[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      row[i] = *reinterpret_cast<const uint4*>(rows + 4 * (first + i));
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int column = 32 * (first + i);  // relative to the thread's first
      const uint32_t four[] = {row[i].x, row[i].y, row[i].z, row[i].w};
      if (column + 32 <= columns) {
#pragma unroll
        for (int j = 0; j < 4; ++j) copy(column + 8 * j, four[j]);
      } else {
#pragma unroll
        for (int j = 0; j < 3; ++j) {
          if (column + 8 * j < columns) copy(column + 8 * j, four[j]);
        }
      }
    }
  }
}

/// Gathers rows of x; the columns alternate between the gather warps.
template <Packing kPacking, int kMost>
__device__ __forceinline__ void GatherTokens(const PromptGemmArgs& args,
                                             const PromptRing<kPacking, kMost>& ring,
                                             const PromptSlot<kMost>* slots, int warp) {
  using Ring = PromptRing<kPacking, kMost>;
  const int lane = threadIdx.x % 32;
  const uint32_t first = warp * 4 + lane / 8;
  static_assert(kGatherWarps * 4 == 8);  // so a thread's place in the swizzle is always the same
  const uint32_t to = first * 128 + (((lane & 7) ^ (first & 7)) * 16);
  SlotPlace at;
  RingPlace<Ring::kStages> place;
  while (true) {
    Await(ring.SlotFull(at.stage()), at.parity());
    const PromptSlot<kMost>& slot = slots[at.stage()];
    const int columns = slot.columns;
    if (columns == 0) break;
    const int pieces = (slot.k64s + PieceK64s(kPacking) - 1) / PieceK64s(kPacking);
    const uint8_t* x = X<kPacking>(args) + (lane & 7) * 16;
#pragma unroll 1
    for (int k = 0; k < pieces; k += Ring::kPieces) {
      Await(ring.Empty(place.stage), place.parity ^ 1);
#pragma unroll
      for (int p = 0; p < Ring::kPieces; ++p, x += 128) {
        if (k + p >= pieces) continue;
        if constexpr (HasColumnFloats(kPacking)) {
          GatherFloats<kPacking>(args, ring, slot, k + p, p, place.stage, warp);
        }
        GatherRows<kMost>(slot.rows + GatherPlace(kMost, first), columns, x,
                          ring.Tokens(place.stage) + p * columns * 128 + to);
      }
      ArriveBehindCopies(ring.Full(place.stage));
      place.Next();
    }
    __syncwarp();
    if (lane == 0) Arrive(ring.SlotEmpty(at.stage()));
    at.Next();
  }
  CopyAsyncWait<0>();
}
#endif

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_GATHER_CUH_
