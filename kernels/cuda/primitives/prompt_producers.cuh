// What the producing warps of family P's CTAs do: they resolve tiles and bring their weights,
// scales and tokens.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_PRODUCERS_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_PRODUCERS_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/primitives/prompt_ring.cuh"
#include "kernels/cuda/primitives/prompt_scale_copies.cuh"
#include "kernels/cuda/prompt_gemm.h"

namespace moert::cuda {

constexpr int kGatherWarps = 2;
/// Producing warps, behind the consumers.
enum PromptRole : int { kWeightWarp, kScheduleWarp, kGatherWarp, kHelperWarp = 4 };
/// Producing warps are four. They are eight where a tile has few columns and so takes little time:
/// four help to bring weights.
MOERT_HOST_DEVICE constexpr int PromptProducers(int most) { return most == 64 ? 8 : 4; }
/// Threads of a CTA: of four warps a group that multiplies, of all.
MOERT_HOST_DEVICE constexpr int PromptConsumers(int groups) { return 128 * groups; }
MOERT_HOST_DEVICE constexpr int PromptThreads(int groups, int most) {
  return PromptConsumers(groups) + 32 * PromptProducers(most);
}
/// Warps that help to bring weights, the first of them, and the row blocks that each brings. The
/// gathering ones do where there is nothing to gather.
MOERT_HOST_DEVICE constexpr int PromptHelpers(bool gate_up, int most) {
  return most == 64 ? 4 : gate_up ? 0 : kGatherWarps;
}
MOERT_HOST_DEVICE constexpr int FirstHelper(int most) {
  return most == 64 ? kHelperWarp : kGatherWarp;
}
/// Registers of a thread, in its role: together what a CTA is launched with, else consumers wait
/// for ever.
MOERT_HOST_DEVICE constexpr int ProducerRegisters(int groups) { return groups == 4 ? 32 : 56; }
MOERT_HOST_DEVICE constexpr int ConsumerRegisters(int groups, int most) {
  return groups == 4 ? 104 : most == 64 ? 200 : 224;
}
MOERT_HOST_DEVICE constexpr bool RegistersFit(int groups, int most) {
  const int threads = PromptThreads(groups, most);
  return ProducerRegisters(groups) * (threads - PromptConsumers(groups)) +
             ConsumerRegisters(groups, most) * PromptConsumers(groups) <=
         65536 / threads / 8 * 8 * threads;
}
static_assert(RegistersFit(4, 64) && RegistersFit(2, 64) && RegistersFit(2, 160) &&
              RegistersFit(2, 256));

#if defined(__CUDA_ARCH__) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MOERT_PROMPT_PRODUCTS 1
#endif

#ifdef MOERT_PROMPT_PRODUCTS

template <Packing kPacking>
__device__ __forceinline__ int64_t XStride(const PromptGemmArgs& args) {
  return Is8Bit(kPacking) ? args.byte_x_stride : args.x_stride;
}
template <Packing kPacking>
__device__ __forceinline__ const uint8_t* X(const PromptGemmArgs& args) {
  return Is8Bit(kPacking) ? args.byte_x[kPacking == Packing::kW8A8   ? 0
                                        : kPacking == Packing::kW4A8 ? 1
                                                                     : 2]
                          : args.x;
}

/// Bytes from a row of x to its scales or sums.
template <Packing kPacking>
__device__ __forceinline__ int64_t XFloats(const PromptGemmArgs& args) {
  return Is8Bit(kPacking) ? args.byte_x_scales : args.x_sums;
}
/// Which of the scales or sums of an activation row piece k brings; below 0: none.
template <Packing kPacking, typename Slot>
__device__ __forceinline__ int ColumnFloats(const Slot& slot, int k) {
  if constexpr (Is8Bit(kPacking)) return k;
  if (k >= slot.k64s) return -1;
  if (slot.group_k64s == 1) return k;
  if (slot.group_k64s == 2) return k % 2 != 0 ? -1 : slot.k64s + k / 2;
  return k != 0 ? -1 : slot.k64s + (slot.k64s + 1) / 2;
}

/// What all warps want to know of a tile, by one thread.
template <Packing kPacking, bool kGateUp, int kMost>
__device__ __forceinline__ void FillSlot(const PromptGemmArgs& args, const PromptUnit& unit,
                                         int row_tile, PromptSlot<kMost>* slot) {
  const TileMatrix& m = unit.matrix[kGateUp ? 0 : 1];
  slot->weights = m.weights;
  slot->scales = m.scales;
  // In parts: the warp has few registers.
  const auto part = [] { asm volatile("" ::: "memory"); };
  part();
  slot->h = args.h + int64_t{unit.h_row} * args.h_stride;
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
  slot->h_row = unit.h_row;
  part();
  slot->of_columns = args.h_columns + int64_t{unit.h_row} * args.h_columns_stride;
  slot->zero_distance = m.zero_distance;
  slot->bias = m.bias;
  part();
  if constexpr (IsImported(kPacking)) slot->form = ScaleForm<kPacking, kGateUp>(m);
  part();
}

/// Where the rows of a tile's columns lie, and their scales, by a warp.
template <Packing kPacking, bool kGateUp, int kMost>
__device__ __forceinline__ void FillRows(const PromptGemmArgs& args, const PromptUnit& unit,
                                         int count, int columns, PromptSlot<kMost>* slot) {
  const int lane = threadIdx.x % 32;
  const int32_t* list = unit.slots;
  const auto fill = [&](int c) {
    const int of = __ldcg(list + min(c + lane, count - 1));
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
            __ldcg(args.h_columns + unit.h_row * args.h_columns_stride + c + lane);
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

/// Resolves one tile after another into the slots. The first tile of a CTA is that of its number,
/// the others are by ticket. A CTA that begins before others do must not take what they would: it
/// asks for a second tile when the launch in front has ended, so that all CTAs run, and where a
/// tile is longer than what the ring holds, for another one when the last but one is done.
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
    if (lane == 0) {
      FillSlot<kPacking, kGateUp>(args, unit, static_cast<int>(tile >> 16), &slot);
    }
    FillRows<kPacking, kGateUp>(args, unit, count, columns, &slot);
    __syncwarp();
    if (lane == 0) Arrive(ring.SlotFull(place.stage()));
    place.Next();
    if (!kGateUp && first) GridDependencySync();
    first = false;
    if (is_long) {
      SlotPlace last_but_one = place;  // has the slot behind the next
      last_but_one.Next();
      Await(ring.SlotEmpty(last_but_one.stage()), last_but_one.parity() ^ 1);
    }
    const int ticket = lane == 0 ? atomicAdd(&table.tickets[kProduct][kIndex], 1) : 0;
    at = __shfl_sync(~0u, ticket, 0) + static_cast<int>(gridDim.x);
  }
}

/// Brings runs of the first `there` of kCount row blocks, `step` bytes apart. By one lane, from
/// addresses that the compiler knows to be the warp's: copies of several lanes would be told apart
/// one by one.
template <int kCount, int kRun>
__device__ __forceinline__ void BringBlocks(uint32_t to, const uint8_t* from, int step, int there,
                                            uint32_t run, uint32_t full) {
  asm volatile("" : "+r"(step));  // else all addresses of a tile are kept
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

/// Row blocks of the weights of one tile after another: those of helper `helper`.
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
    // Row blocks from there on; below 0 where the matrix has ended before. Not max(0, min()): ptxas
    // 13.0 makes one instruction of it and takes a wrong predicate for the comparison with kCount.
    const int there = slot.row_blocks - block;
    const uint8_t* weights =
        slot.weights + (second ? slot.second_weights : 0) + int64_t{block} * k64_bytes;
#pragma unroll 1
    for (int left = k64_bytes; left > 0; left -= Ring::kRun) {
      const uint32_t run = min(Ring::kRun, left), full = ring.Full(place.stage);
      Await(ring.Empty(place.stage), place.parity ^ 1);
      // Who brings nothing arrives too: else the ring could leave it behind, where it waits for a
      // phase that was long ago.
      ArriveExpecting(full, there >= kCount ? kCount * run : there > 0 ? there * run : 0);
      BringBlocks<kCount, Ring::kRun>(ring.Weights(place.stage) + helper * kCount * Ring::kRun,
                                      weights, k64_bytes, there, run, full);
      weights += Ring::kRun;
      place.Next();
    }
    Arrive(ring.SlotEmpty(at.stage()));
    at.Next();
  }
}

/// Brings the weights and scales of one tile after another, and h where it is the other operand;
/// not what helpers bring.
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
      uint32_t float_bytes = 0;
      int floats[kPieces];
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        floats[p] = -1;
        if constexpr (!kGateUp && HasColumnFloats(kPacking)) {
          floats[p] = ColumnFloats<kPacking>(slot, k * kPieces + p);
          float_bytes += floats[p] < 0 ? 0 : columns * 4;
        }
      }
      const uint32_t weight_bytes =
          PromptHelpers(kGateUp, kMost) == 0 ? kMatrices * blocks * run : 0;
      ArriveExpecting(full, weight_bytes + tokens + float_bytes + scales.Bytes(k));
      if constexpr (!kGateUp) {
        BulkCopy(ring.Tokens(place.stage), slot.h + k * (kPieces * columns * 128), tokens, full);
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
          if (floats[p] < 0) continue;
          BulkCopy(ring.Floats(place.stage, p), slot.of_columns + int64_t{floats[p]} * columns,
                   columns * 4, full);
        }
      }
      if constexpr (PromptHelpers(kGateUp, kMost) == 0) {
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) {
          BringBlocks<kBlocks, Ring::kRun>(ring.Weights(place.stage) + m * kBlocks * Ring::kRun,
                                           weights + (m != 0 ? second : 0), k64_bytes, blocks, run,
                                           full);
        }
        weights += Ring::kRun;
      }
      scales.Copy(k, ring.Scales(place.stage, 0), full);
      place.Next();
    }
    Arrive(ring.SlotEmpty(at.stage()));
    at.Next();
  }
}

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
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(ring.Floats(stage, p) + c * 4),
                 "l"(floats + slot.rows[GatherPlace(kMost, c)])
                 : "memory");
  }
}

/// A thread's 16 bytes of every column that is its own, whose rows lie at `rows`.
template <int kMost>
__device__ __forceinline__ void GatherRows(const uint32_t* rows, int columns, const uint8_t* x,
                                           uint32_t to) {
  constexpr int kFours = kMost / 32;
  constexpr int kAtOnce = kFours == 8 ? 4 : kFours;
  const auto copy = [&](int column, uint32_t row) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + column * 128), "l"(x + row)
                 : "memory");
  };
#pragma unroll
  for (int first = 0; first < kFours; first += kAtOnce) {
    // Where some rows begin is read before the first is copied: a copy lets nothing pass.
    uint4 row[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      row[i] = *reinterpret_cast<const uint4*>(rows + 4 * (first + i));
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int column = 32 * (first + i);  // of the thread's, but for where it begins
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

/// Gathers the rows of x, in turn with the other gathering warps.
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

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_PRODUCERS_CUH_
