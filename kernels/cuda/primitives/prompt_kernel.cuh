// The kernel of family P (prompt_gemm.h): what the warps of a CTA do. Every packing is compiled in
// a file of its own (prompt_*.cu).
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_KERNEL_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_KERNEL_CUH_

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/prompt_scale_copies.cuh"
#include "kernels/cuda/primitives/prompt_tile.cuh"
#include "kernels/cuda/prompt_gemm.h"
#include "kernels/cuda/prompt_launch.h"

namespace moert::cuda {

constexpr int kPromptConsumers = 256;
constexpr int kPromptThreads = kPromptConsumers + 128;
constexpr int kGatherWarps = 2;
enum PromptRole : int { kWeightWarp = 8, kScheduleWarp = 9, kGatherWarp = 10 };

#if defined(__CUDA_ARCH__) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MOERT_PROMPT_PRODUCTS 1
#endif

#ifdef MOERT_PROMPT_PRODUCTS

template <Packing kPacking>
__device__ __forceinline__ int64_t XStride(const PromptGemmArgs& args) {
  return IsInt8(kPacking) ? args.int8_x_stride : args.x_stride;
}
template <Packing kPacking>
__device__ __forceinline__ const uint8_t* X(const PromptGemmArgs& args) {
  return IsInt8(kPacking) ? args.int8_x[kPacking == Packing::kW8A8 ? 0 : 1] : args.x;
}

/// Bytes from a row of x to its scales or sums.
template <Packing kPacking>
__device__ __forceinline__ int64_t XFloats(const PromptGemmArgs& args) {
  return IsInt8(kPacking) ? args.int8_x_scales : args.x_sums;
}
/// Which of the scales or sums of an activation row stage k brings; below 0: none.
template <Packing kPacking, typename Slot>
__device__ __forceinline__ int ColumnFloats(const Slot& slot, int k) {
  if constexpr (IsInt8(kPacking)) return k;
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
  slot->h = args.h + int64_t{unit.h_row} * args.h_stride;
  slot->second_weights = m.second_weights;
  slot->second_scales = m.second_scales;
  slot->k64s = m.k64s;
  slot->group_k64s = m.group_k16s / 4;
  slot->row_blocks = m.row_blocks;
  slot->row_tile = row_tile;
  slot->columns = unit.columns;
  slot->count = unit.count;
  slot->h_row = unit.h_row;
  slot->of_columns = args.h_columns + int64_t{unit.h_row} * args.h_columns_stride;
  slot->zero_distance = m.zero_distance;
  if constexpr (IsImported(kPacking)) slot->form = ScaleForm<kPacking, kGateUp>(m);
}

/// Where the rows of a tile's columns lie, and their scales, by a warp.
template <Packing kPacking, bool kGateUp, int kMost>
__device__ __forceinline__ void FillRows(const PromptGemmArgs& args, const PromptUnit& unit,
                                         int count, int columns, PromptSlot<kMost>* slot) {
  const int lane = threadIdx.x % 32;
  const int32_t* list = unit.slots;
#pragma unroll
  for (int c = 0; c < kMost; c += 32) {
    if (c >= columns) continue;
    const int of = list[min(c + lane, count - 1)];
    if constexpr (kGateUp) {
      const int token = of < args.pairs ? of / args.top_k : of - args.pairs;
      slot->rows[c + lane] = static_cast<uint32_t>(token * XStride<kPacking>(args));
      if constexpr (kPacking == Packing::kW8A8) {
        slot->scales_of[c + lane] = *reinterpret_cast<const float*>(
            X<kPacking>(args) + token * args.int8_x_stride + args.int8_x_scales);
      }
    } else {
      slot->rows[c + lane] = of;
      if constexpr (kPacking == Packing::kW8A8) {
        slot->scales_of[c + lane] = args.h_columns[unit.h_row * args.h_columns_stride + c + lane];
      }
    }
  }
}

/// Resolves one tile after another into the slots.
template <Packing kPacking, bool kGateUp, int kMost>
__device__ __forceinline__ void Schedule(const PromptGemmArgs& args,
                                         const PromptRing<kPacking, kMost>& ring,
                                         PromptSlot<kMost>* slots) {
  constexpr int kProduct = kGateUp ? 0 : 1;
  constexpr int kIndex = PromptIndex(kPacking);
  const int lane = threadIdx.x % 32;
  const PromptTable& table = args.table;
  const int begin = table.begins[kProduct][kIndex];
  const int end = table.begins[kProduct][kIndex + 1];
  int at = begin + static_cast<int>(blockIdx.x);
  RingPlace<kPromptSlots> place;
  while (true) {
    int next = 0;
    if (lane == 0 && at < end) {
      next = begin + static_cast<int>(gridDim.x) + atomicAdd(&table.tickets[kProduct][kIndex], 1);
    }
    PromptSlot<kMost>& slot = slots[place.stage];
    Await(ring.SlotEmpty(place.stage), place.parity ^ 1);
    if (at < end) {
      const uint32_t tile = table.tiles[kProduct][at];
      const PromptUnit& unit = table.units[tile & 0xffffu];
      const int count = unit.count, columns = unit.columns;
      if (lane == 0) {
        FillSlot<kPacking, kGateUp>(args, unit, static_cast<int>(tile >> 16), &slot);
      }
      FillRows<kPacking, kGateUp>(args, unit, count, columns, &slot);
    } else if (lane == 0) {
      slot.columns = 0;
    }
    __syncwarp();
    if (lane == 0) Arrive(ring.SlotFull(place.stage));
    if (at >= end) return;
    place.Next();
    at = __shfl_sync(~0u, next, 0);
  }
}

/// Brings the weights of one tile after another, and h where it is the other operand.
template <Packing kPacking, bool kGateUp, int kMost>
__device__ __forceinline__ void BringWeights(const PromptRing<kPacking, kMost>& ring,
                                             const PromptSlot<kMost>* slots) {
  using Ring = PromptRing<kPacking, kMost>;
  constexpr int kPieces = StageK64s(kPacking);
  constexpr uint32_t kPiece = K64Bytes(kPacking);
  const int lane = threadIdx.x % 32;
  RingPlace<kPromptSlots> at;
  RingPlace<Ring::kStages> place;
  while (true) {
    Await(ring.SlotFull(at.stage), at.parity);
    const PromptSlot<kMost>& slot = slots[at.stage];
    const int columns = slot.columns;
    if (columns == 0) return;
    const int k64s = slot.k64s;
    const int block = kGateUp ? slot.row_tile * 4 + (lane & 3) : slot.row_tile * 8 + (lane & 7);
    const uint8_t* weights = slot.weights +
                             int64_t{min(block, slot.row_blocks - 1)} * k64s * kPiece +
                             (kGateUp && (lane & 4) ? slot.second_weights : 0);
    const uint8_t* h = slot.h;
    const uint32_t tokens = kGateUp ? 0 : columns * 128;
    const std::conditional_t<IsImported(kPacking), StageScaleCopies<kPacking, kGateUp>, NoScales>
        scales(slot, lane);
    const int stages = (k64s + kPieces - 1) / kPieces;
    for (int k = 0; k < stages; ++k) {
      Await(ring.Empty(place.stage), place.parity ^ 1);
      const uint32_t run = min(kPieces, k64s - k * kPieces) * kPiece;
      const uint32_t full = ring.Full(place.stage);
      uint32_t scale_bytes = 0, column_bytes = 0;
      int column_floats = -1;
      if constexpr (!kGateUp && HasColumnFloats(kPacking)) {
        column_floats = ColumnFloats<kPacking>(slot, k);
        column_bytes = column_floats < 0 ? 0 : columns * 4;
      }
      if constexpr (IsImported(kPacking)) scale_bytes = __reduce_add_sync(~0u, scales.Bytes(k));
      if (lane == 0) {
        ArriveExpecting(full, 8 * run + tokens + column_bytes + scale_bytes);
        if constexpr (!kGateUp) {
          BulkCopy(ring.Tokens(place.stage), h + int64_t{k} * tokens, tokens, full);
          if (column_bytes != 0) {
            BulkCopy(ring.Scales(place.stage), slot.of_columns + int64_t{column_floats} * columns,
                     column_bytes, full);
          }
        }
      }
      __syncwarp();
      if (lane < 8) {
        BulkCopy(ring.Weights(place.stage) + lane * Ring::kRun, weights + int64_t{k} * Ring::kRun,
                 run, full);
      }
      if constexpr (IsImported(kPacking)) scales.Copy(k, ring.Scales(place.stage), full);
      place.Next();
    }
    __syncwarp();
    if (lane == 0) Arrive(ring.SlotEmpty(at.stage));
    at.Next();
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
  const uint32_t piece = lane & 7;
  // Rows of a thread are 8 apart: their place in the swizzle is the same.
  const uint32_t to = first * 128 + ((piece ^ (first & 7)) * 16);
  RingPlace<kPromptSlots> at;
  RingPlace<Ring::kStages> place;
  while (true) {
    Await(ring.SlotFull(at.stage), at.parity);
    const PromptSlot<kMost>& slot = slots[at.stage];
    const int columns = slot.columns;
    if (columns == 0) break;
    const int stages = (slot.k64s + StageK64s(kPacking) - 1) / StageK64s(kPacking);
    const uint8_t* x = X<kPacking>(args) + piece * 16;
    for (int k = 0; k < stages; ++k, x += 128) {
      Await(ring.Empty(place.stage), place.parity ^ 1);
      if constexpr (HasColumnFloats(kPacking)) {
        const int at = ColumnFloats<kPacking>(slot, k);
        const uint8_t* floats = X<kPacking>(args) + XFloats<kPacking>(args) + at * 4;
#pragma unroll 1
        for (int c = at < 0 ? columns : warp * 32 + lane; c < columns; c += kGatherWarps * 32) {
          asm volatile(
              "cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(ring.Scales(place.stage) + c * 4),
              "l"(floats + slot.rows[c])
              : "memory");
        }
      }
      const uint32_t tokens = ring.Tokens(place.stage) + to;
      // Where some rows begin is read before the first is copied: a copy lets nothing pass.
      constexpr int kAtOnce = kMost < 128 ? 2 : 4;
      const uint32_t* rows = slot.rows + first;
#pragma unroll 1
      for (int c = 0; c < columns; c += 8 * kAtOnce) {
        uint32_t row[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) row[i] = rows[c + 8 * i];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          asm volatile(
              "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(tokens + (c + 8 * i) * 128),
              "l"(x + row[i])
              : "memory");
        }
      }
      ArriveBehindCopies(ring.Full(place.stage));
      place.Next();
    }
    __syncwarp();
    if (lane == 0) Arrive(ring.SlotEmpty(at.stage));
    at.Next();
  }
  CopyAsyncWait<0>();
}

template <Packing kPacking, bool kGateUp, int kMost, int kColumns>
__device__ __forceinline__ void RunTile(PromptConsumer<kPacking, kGateUp, kMost>& consumer,
                                        const PromptGemmArgs& args, const PromptSlot<kMost>& slot) {
  float d[kColumns / 2];
  consumer.Forget();
  consumer.template Multiply<kColumns>(slot, d);
  if constexpr (kGateUp && IsInt8(kPacking)) {
    consumer.template StoreWideH<kColumns>(slot, args.activation == 0, args.wide_h,
                                           args.wide_h_stride, d);
  } else if constexpr (kGateUp) {
    consumer.template StoreH<kColumns>(slot, args.activation == 0, d);
  } else {
    consumer.template StoreOut<kColumns>(slot, args.out, args.out_stride, d);
  }
}

/// Calls RunTile of the columns. More than four kinds in a kernel are too much for the compiler: it
/// then waits for every single product.
template <Packing kPacking, bool kGateUp, int kMost>
__device__ __forceinline__ void RunColumns(PromptConsumer<kPacking, kGateUp, kMost>& consumer,
                                           const PromptGemmArgs& args,
                                           const PromptSlot<kMost>& slot) {
  constexpr int kStep = PromptStep(kMost);
  switch ((kMost - slot.columns) / kStep) {
    case 0:
      return RunTile<kPacking, kGateUp, kMost, kMost>(consumer, args, slot);
    case 1:
      return RunTile<kPacking, kGateUp, kMost, kMost - kStep>(consumer, args, slot);
    case 2:
      return RunTile<kPacking, kGateUp, kMost, kMost - 2 * kStep>(consumer, args, slot);
    default:
      if constexpr (PromptKinds(kMost) == 4) {
        return RunTile<kPacking, kGateUp, kMost, kMost - 3 * kStep>(consumer, args, slot);
      }
  }
}

template <Packing kPacking, bool kGateUp, int kMost>
__device__ __forceinline__ void RunCta(const PromptGemmArgs& args, uint8_t* shared) {
  using Ring = PromptRing<kPacking, kMost>;
  const Ring ring{(SharedAddress(shared) + 1023) & ~1023u};
  const uint32_t slot_offset = ring.Barriers() + Ring::kBarrierBytes - SharedAddress(shared);
  auto* slots = reinterpret_cast<PromptSlot<kMost>*>(shared + slot_offset);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    for (int s = 0; s < Ring::kStages; ++s) {
      InitBarrier(ring.Full(s), 1 + (kGateUp ? kGatherWarps * 32 : 0));
      InitBarrier(ring.Empty(s), kPromptConsumers / 32);
    }
    for (int s = 0; s < kPromptSlots; ++s) {
      InitBarrier(ring.SlotFull(s), 1);
      InitBarrier(ring.SlotEmpty(s), 1 + (kGateUp ? kGatherWarps : 0) + kPromptConsumers / 32);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  GridDependencySync();
  TriggerDependentLaunch();
  if (warp >= kPromptConsumers / 32) {
    GiveRegisters<40>();
    if (warp == kWeightWarp) {
      FenceAsyncProxy();  // h was written by ordinary stores
      BringWeights<kPacking, kGateUp, kMost>(ring, slots);
    } else if (warp == kScheduleWarp) {
      Schedule<kPacking, kGateUp, kMost>(args, ring, slots);
    } else if (kGateUp) {
      GatherTokens<kPacking, kMost>(args, ring, slots, warp - kGatherWarp);
    }
  } else {
    TakeRegisters<232>();
    const int lane = __shfl_sync(~0u, static_cast<int>(threadIdx.x % 32), threadIdx.x % 32);
    PromptConsumer<kPacking, kGateUp, kMost> consumer(ring, warp / 4, warp % 4, lane);
    RingPlace<kPromptSlots> at;
    while (true) {
      Await(ring.SlotFull(at.stage), at.parity);
      const PromptSlot<kMost>& slot = slots[at.stage];
      if (slot.columns == 0) break;
      RunColumns<kPacking, kGateUp, kMost>(consumer, args, slot);
      __syncwarp();
      if (lane == 0) Arrive(ring.SlotEmpty(at.stage));
      at.Next();
    }
  }
}
#endif

template <Packing kPacking, bool kGateUp, int kMost>
__global__ void __launch_bounds__(kPromptThreads, 1)
    PromptGemmKernel(const __grid_constant__ PromptGemmArgs args) {
#ifdef MOERT_PROMPT_PRODUCTS
  extern __shared__ uint8_t shared[];
  RunCta<kPacking, kGateUp, kMost>(args, shared);
#endif
}

template <Packing kPacking, bool kGateUp, int kMost>
int LaunchOne(const PromptGemmArgs& args, cudaStream_t stream) {
  constexpr int kBytes = PromptRing<kPacking, kMost>::kBytes;
  const auto kernel = PromptGemmKernel<kPacking, kGateUp, kMost>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  return LaunchEarly(kernel, args.ctas, kPromptThreads, kBytes, stream, args);
}

template <Packing kPacking, bool kGateUp>
int LaunchMost(const PromptGemmArgs& args, cudaStream_t stream) {
  switch (args.most) {
    case 64:
      return LaunchOne<kPacking, kGateUp, 64>(args, stream);
    case 160:
      return LaunchOne<kPacking, kGateUp, 160>(args, stream);
    case 256:
      if constexpr (kPacking != Packing::kW4A8) {
        return LaunchOne<kPacking, kGateUp, 256>(args, stream);
      }
      return cudaErrorInvalidValue;
    default:
      return cudaErrorInvalidValue;
  }
}

template <Packing kPacking>
int LaunchPrompt(const PromptGemmArgs& args, int product, cudaStream_t stream) {
  return product == 0 ? LaunchMost<kPacking, true>(args, stream)
                      : LaunchMost<kPacking, false>(args, stream);
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_KERNEL_CUH_
