// The scheduling warp of a CTA of family P, which resolves tiles for the other warps.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_SCHEDULE_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_SCHEDULE_CUH_

#include "kernels/cuda/prompt/prompt_gemm.h"
#include "kernels/cuda/prompt/prompt_ring.cuh"
#include "kernels/cuda/prompt/prompt_roles.cuh"
#include "kernels/cuda/prompt/prompt_scale_copies.cuh"
#include "kernels/cuda/prompt/prompt_x.cuh"

namespace moert::cuda {

/// Where gate and up store h, and down reads it.
template <Packing kPacking, bool kGateUp>
__device__ __forceinline__ uint8_t* HOf(const PromptGemmArgs& args) {
  constexpr bool kQuantizes = kPromptQuantizes >> PromptIndex(kPacking) & 1;
  if constexpr (!kGateUp || !Is8Bit(kPacking)) return args.h;
  return kQuantizes && args.form == PromptForm::kWgmma ? args.h : args.rounded_h;
}

/// Writes what the warps need to know of a tile. Called by one thread.
template <Packing kPacking, bool kGateUp, int kMost>
__device__ __forceinline__ void FillSlot(const PromptGemmArgs& args, const PromptUnit& unit,
                                         int row_tile, PromptSlot<kMost>* slot) {
  const TileMatrix& m = unit.matrix[kGateUp ? 0 : 1];
  slot->weights = m.weights;
  slot->scales = m.scales;
  // The copy is split in parts, because the warp has few registers.
  const auto part = [] { asm volatile("" ::: "memory"); };
  part();
  slot->h = HOf<kPacking, kGateUp>(args) + int64_t{unit.h_row} * args.h_stride;
  slot->second_weights = m.second_weights;
  slot->second_scales = m.second_scales;
  part();
  slot->k64s = m.k64s;
  slot->group_k64s = m.group_k16s / 4;
  slot->row_blocks = m.row_blocks;
  slot->row_tile = row_tile;
  part();
  slot->columns = unit.columns;
  slot->count = unit.count;
  part();
  slot->of_columns = args.h_columns + int64_t{unit.h_row} * args.h_columns_stride;
  slot->zero_distance = m.zero_distance;
  slot->bias = m.bias;
  part();
  if constexpr (IsImported(kPacking)) slot->form = ScaleForm<kPacking, kGateUp>(m);
  part();
}

/// Whether the rows of each 128 rows of a tile share their scales of fp8_b128. They do in files
/// with blocks of 128 by 128, and do not in files with a scale per channel. Called by a warp.
template <bool kGateUp, int kMost>
__device__ __forceinline__ bool SameScales(const TileMatrix& m, int row_tile) {
  constexpr int kRows = 128, kBlocks = kRows / 16;
  const int first = row_tile * PromptRowBlocks(kMost) / (kGateUp ? 2 : 1);
  const int groups = (m.k64s + 1) / 2;
  const int lane = threadIdx.x % 32;
  bool same = true;
  for (int half = 0; half < PromptRowBlocks(kMost) / kBlocks; ++half) {
    const int block = first + (kGateUp ? 0 : half * kBlocks);
    const int mine = block + lane / 4 < m.row_blocks ? lane : 0;  // of padding: the first
    if (block >= m.row_blocks) break;
    const uint8_t* scales =
        m.scales + (kGateUp && half != 0 ? m.second_scales : 0) + int64_t{block} * 64;
#pragma unroll 4
    for (int g = 0; g < groups; ++g, scales += m.row_blocks * 64) {
      const float of_all = __ldcg(reinterpret_cast<const float*>(scales));
      const float4 v = __ldcg(reinterpret_cast<const float4*>(scales) + mine);
      same = same && v.x == of_all && v.y == of_all && v.z == of_all && v.w == of_all;
    }
  }
  return __all_sync(~0u, same);
}

/// Writes where the rows of a tile's columns lie, and their scales. Called by a warp.
template <Packing kPacking, bool kGateUp, int kMost>
__device__ __forceinline__ void FillRows(const PromptGemmArgs& args, const PromptUnit& unit,
                                         int count, int columns, PromptSlot<kMost>* slot) {
  const int lane = threadIdx.x % 32;
  const int32_t* list = unit.slots;
  const auto fill = [&](int c) {
    const int in_unit = min(c + lane, count - 1);  // padding columns repeat the last one
    const int of = __ldcg(list + in_unit);
    if constexpr (kGateUp) {
      const int token = of < args.pairs ? of / args.top_k : of - args.pairs;
      slot->rows[GatherPlace(kMost, c + lane)] =
          static_cast<uint32_t>(token * XStride<kPacking>(args));
      if constexpr (HasRowScales(kPacking)) {
        slot->scales_of[c + lane] = *reinterpret_cast<const float*>(
            X<kPacking>(args) + token * args.byte_x_stride + args.byte_x_scales);
      }
    } else {
      slot->rows[c + lane] = of;
      if constexpr (HasRowScales(kPacking)) {
        slot->scales_of[c + lane] =
            __ldcg(args.h_columns + unit.h_row * args.h_columns_stride + in_unit);
      }
    }
  };
  if constexpr (kMost == 64) {  // where there are few registers
#pragma unroll 1
    for (int c = 0; c < columns; c += 32) fill(c);
  } else {
#pragma unroll
    for (int c = 0; c < kMost; c += 32) {
      if (c < columns) fill(c);
    }
  }
}

#ifdef MOERT_PROMPT_PRODUCTS
/// Resolves tile after tile into the slots. A CTA's first tile is given by its block index; it
/// takes the others by ticket. A CTA that begins early must not take the tiles of CTAs that have
/// not begun yet. So it takes its second tile only when the launch before this one has ended, since
/// all CTAs can run then. Where a tile is longer than the ring, it takes another one only when the
/// last but one is done.
template <Packing kPacking, bool kGateUp, int kMost>
__device__ __forceinline__ void Schedule(const PromptGemmArgs& args,
                                         const PromptRing<kPacking, kMost>& ring,
                                         PromptSlot<kMost>* slots) {
  using Ring = PromptRing<kPacking, kMost>;
  constexpr int kProduct = kGateUp ? 0 : 1;
  constexpr int kIndex = PromptIndex(kPacking);
  constexpr int kLong = 2 * Ring::kStages * Ring::kPieces * PieceK64s(kPacking);  // 64 k
  const int lane = threadIdx.x % 32;
  const PromptTable& table = args.table;
  const int end = __ldcg(&table.begins[kProduct][kIndex + 1]);
  int at = __ldcg(&table.begins[kProduct][kIndex]) + static_cast<int>(blockIdx.x);
  bool first = true;
  SlotPlace place;
  while (true) {
    PromptSlot<kMost>& slot = slots[place.stage()];
    Await(ring.SlotEmpty(place.stage()), place.parity() ^ 1);
    if (at >= end) {
      if (lane == 0) {
        slot.columns = 0;
        Arrive(ring.SlotFull(place.stage()));
      }
      return;
    }
    const uint32_t tile = __ldcg(table.tiles[kProduct] + at);
    const PromptUnit& unit = table.units[tile & 0xffffu];
    const int count = unit.count, columns = unit.columns;
    const bool is_long = unit.matrix[kProduct].k64s >= kLong;
    const int row_tile = static_cast<int>(tile >> 16);
    if (lane == 0) FillSlot<kPacking, kGateUp>(args, unit, row_tile, &slot);
    if constexpr (HasWholeStages(kPacking, kMost)) {
      const bool same = SameScales<kGateUp, kMost>(unit.matrix[kProduct], row_tile);
      if (lane == 0) slot.same = same ? 1 : 0;
    }
    FillRows<kPacking, kGateUp>(args, unit, count, columns, &slot);
    __syncwarp();
    if (lane == 0) Arrive(ring.SlotFull(place.stage()));
    place.Next();
    if (!kGateUp && first) GridDependencySync();
    first = false;
    if (is_long) {
      SlotPlace last_but_one = place;  // used the slot after the next one
      last_but_one.Next();
      Await(ring.SlotEmpty(last_but_one.stage()), last_but_one.parity() ^ 1);
    }
    const int ticket = lane == 0 ? atomicAdd(&table.tickets[kProduct][kIndex], 1) : 0;
    at = __shfl_sync(~0u, ticket, 0) + static_cast<int>(gridDim.x);
  }
}
#endif

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_SCHEDULE_CUH_
