// The kernel of family P (prompt_gemm.h): what the warps of a CTA do. Every packing is compiled in
// a file of its own (prompt_*.cu).
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_KERNEL_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_KERNEL_CUH_

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/prompt_producers.cuh"
#include "kernels/cuda/primitives/prompt_store.cuh"
#include "kernels/cuda/primitives/prompt_tile.cuh"
#include "kernels/cuda/prompt_gemm.h"
#include "kernels/cuda/prompt_launch.h"

namespace moert::cuda {

#ifdef MOERT_PROMPT_PRODUCTS

/// Columns of the products of a unit: int8 ones come in fewer kinds.
template <Packing kPacking, int kUnitColumns>
constexpr int kProductColumns = IsInt8(kPacking) && kUnitColumns == 40 ? 48 : kUnitColumns;

template <Packing kPacking, bool kGateUp, int kMost, int kUnitColumns>
__device__ __forceinline__ void RunTile(PromptConsumer<kPacking, kGateUp, kMost>& consumer,
                                        const PromptGemmArgs& args, const PromptSlot<kMost>& slot) {
  constexpr int kColumns = kProductColumns<kPacking, kUnitColumns>;
  float d[PromptBlocks(kMost)][kColumns / 2];
  consumer.Forget();
  const PromptStore<kGateUp, kMost> store{consumer.of, consumer.ring.Staging(consumer.of.group)};
  if (slot.bias != 0) store.PrefetchBiases(slot);
  consumer.template Multiply<kColumns>(slot, d);
  if (slot.bias != 0) store.template AddBiases<kColumns>(slot, d);
  const bool silu = args.activation.function != 2;
  if constexpr (kGateUp) {
    if (args.activation.plain == 0 && args.activation.function == 3) {
      store.template Square<kColumns>(args.activation, d);
    } else if (args.activation.plain == 0) {
      store.template Clamp<kColumns>(args.activation, d);
    }
  }
  if constexpr (kGateUp && IsInt8(kPacking)) {
    store.template WideH<kColumns>(slot, silu, args.wide_h, args.wide_h_stride, d);
  } else if constexpr (kGateUp) {
    store.template H<kColumns>(slot, silu, d);
  } else {
    store.template Out<kColumns>(slot, args.out, args.out_stride, d);
  }
}

/// Calls RunTile of the columns.
template <Packing kPacking, bool kGateUp, int kMost>
__device__ __forceinline__ void RunColumns(PromptConsumer<kPacking, kGateUp, kMost>& consumer,
                                           const PromptGemmArgs& args,
                                           const PromptSlot<kMost>& slot) {
  constexpr int kKind[] = {PromptKind(kMost, 0), PromptKind(kMost, 1), PromptKind(kMost, 2),
                           PromptKind(kMost, 3)};
  if (slot.columns == kKind[0]) {
    RunTile<kPacking, kGateUp, kMost, kKind[0]>(consumer, args, slot);
  } else if (slot.columns == kKind[1]) {
    RunTile<kPacking, kGateUp, kMost, kKind[1]>(consumer, args, slot);
  } else if (kKind[2] < kKind[3] && slot.columns == kKind[2]) {
    RunTile<kPacking, kGateUp, kMost, kKind[2]>(consumer, args, slot);
  } else {
    RunTile<kPacking, kGateUp, kMost, kKind[3]>(consumer, args, slot);
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
      InitBarrier(ring.Full(s),
                  1 + PromptHelpers(kGateUp, kMost) + (kGateUp ? kGatherWarps * 32 : 0));
      InitBarrier(ring.Empty(s), kPromptConsumers / 32);
    }
    for (int s = 0; s < kPromptSlots; ++s) {
      InitBarrier(ring.SlotFull(s), 1);
      InitBarrier(ring.SlotEmpty(s), 1 + PromptHelpers(kGateUp, kMost) +
                                         (kGateUp ? kGatherWarps : 0) + kPromptConsumers / 32);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  GridDependencySync();
  TriggerDependentLaunch();
  if (warp >= kPromptConsumers / 32) {
    GiveRegisters<kProducerRegisters>();
    FenceAsyncProxy();  // h was written by ordinary stores, and weights may have been
    if (warp == kWeightWarp) {
      BringWeights<kPacking, kGateUp, kMost>(ring, slots);
    } else if (warp == kScheduleWarp) {
      Schedule<kPacking, kGateUp, kMost>(args, ring, slots);
    } else if (kGateUp && warp < kHelperWarp) {
      GatherTokens<kPacking, kMost>(args, ring, slots, warp - kGatherWarp);
    } else if constexpr (PromptHelpers(kGateUp, kMost) > 0) {
      if (warp >= FirstHelper(kMost)) {
        HelpWithWeights<kPacking, kGateUp, kMost>(ring, slots, warp - FirstHelper(kMost));
      }
    }
  } else {
    TakeRegisters<ConsumerRegisters(kMost)>();
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
__global__ void __launch_bounds__(PromptThreads(kMost), 1)
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
  return LaunchEarly(kernel, args.ctas, PromptThreads(kMost), kBytes, stream, args);
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
