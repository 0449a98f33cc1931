// The kernel of family P (prompt_gemm.h): what the warps of a CTA do. Every packing is compiled in
// a file of its own (prompt_*.cu).
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_KERNEL_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_KERNEL_CUH_

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/prompt/prompt_bring.cuh"
#include "kernels/cuda/prompt/prompt_gather.cuh"
#include "kernels/cuda/prompt/prompt_gemm.h"
#include "kernels/cuda/prompt/prompt_launch.h"
#include "kernels/cuda/prompt/prompt_mma.cuh"
#include "kernels/cuda/prompt/prompt_quantized_h.cuh"
#include "kernels/cuda/prompt/prompt_roles.cuh"
#include "kernels/cuda/prompt/prompt_schedule.cuh"
#include "kernels/cuda/prompt/prompt_store.cuh"
#include "kernels/cuda/prompt/prompt_tile.cuh"

namespace moert::cuda {

#ifdef MOERT_PROMPT_PRODUCTS

/// Columns of the products of a unit. int8 wgmma has no instruction for 40 columns.
template <Packing kPacking, int kUnitColumns>
constexpr int kProductColumns = Is8Bit(kPacking) && !IsE4m3(kPacking) && kUnitColumns == 40
                                    ? 48
                                    : kUnitColumns;

/// kPlain: there are no biases, and the activation is plain silu or gelu.
template <Packing kPacking, bool kGateUp, int kMost, bool kPlain, int kUnitColumns>
__device__ __forceinline__ void RunTile(PromptConsumer<kPacking, kGateUp, kMost>& consumer,
                                        const PromptGemmArgs& args, const PromptSlot<kMost>& slot) {
  constexpr int kColumns = kProductColumns<kPacking, kUnitColumns>;
  float d[PromptBlocks(kPacking, kMost)][kColumns / 2];
  consumer.Forget();
  const PromptStore<kGateUp, kMost, PromptWarpGroups(kPacking, kMost)> store{
      consumer.of, consumer.ring.Staging(consumer.of.group)};
  const bool biased = !kPlain && slot.bias != 0;
  if (biased) store.PrefetchBiases(slot);
  consumer.template Multiply<kColumns>(slot, d);
  if (biased) store.template AddBiases<kColumns>(slot, d);
  store.template Exchange<kColumns>(d);
  const bool silu = args.activation.function != DeviceFunction::kGeluTanh;
  if constexpr (kGateUp && !kPlain) store.template Prepare<kColumns>(args.activation, d);
  if constexpr (kGateUp && kPacking == Packing::kF8BlockF8) {
    const PromptQuantizedH<kMost, PromptWarpGroups(kPacking, kMost)> quantized{
        consumer.of, consumer.ring.Staging(0)};
    quantized.template Store<kColumns>(slot, silu, d);
  } else if constexpr (kGateUp) {
    store.template H<kColumns>(slot, silu, d);
  } else {
    store.template Out<kColumns>(slot, args.out, args.out_stride, d);
  }
}

/// Calls RunTile for the slot's number of columns.
template <Packing kPacking, bool kGateUp, int kMost, bool kPlain>
__device__ __forceinline__ void RunColumns(PromptConsumer<kPacking, kGateUp, kMost>& consumer,
                                           const PromptGemmArgs& args,
                                           const PromptSlot<kMost>& slot) {
  constexpr int kKind[] = {PromptKind(kMost, 0), PromptKind(kMost, 1), PromptKind(kMost, 2),
                           PromptKind(kMost, 3)};
  if (slot.columns == kKind[0]) {
    RunTile<kPacking, kGateUp, kMost, kPlain, kKind[0]>(consumer, args, slot);
  } else if (slot.columns == kKind[1]) {
    RunTile<kPacking, kGateUp, kMost, kPlain, kKind[1]>(consumer, args, slot);
  } else if (kKind[2] < kKind[3] && slot.columns == kKind[2]) {
    RunTile<kPacking, kGateUp, kMost, kPlain, kKind[2]>(consumer, args, slot);
  } else {
    RunTile<kPacking, kGateUp, kMost, kPlain, kKind[3]>(consumer, args, slot);
  }
}

/// Initializes the barriers of a CTA's ring and slots. Called by one thread.
template <Packing kPacking, bool kGateUp, int kMost>
__device__ __forceinline__ void InitBarriers(const PromptRing<kPacking, kMost>& ring) {
  constexpr int kConsumerWarps = 4 * PromptWarpGroups(kPacking, kMost);
  for (int s = 0; s < PromptRing<kPacking, kMost>::kStages; ++s) {
    InitBarrier(ring.Full(s),
                1 + PromptHelpers(kGateUp, kMost) + (kGateUp ? kGatherWarps * 32 : 0));
    InitBarrier(ring.Empty(s), kConsumerWarps);
  }
  for (int s = 0; s < kPromptSlots; ++s) {
    InitBarrier(ring.SlotFull(s), 1);
    InitBarrier(ring.SlotEmpty(s),
                1 + PromptHelpers(kGateUp, kMost) + (kGateUp ? kGatherWarps : 0) + kConsumerWarps);
  }
  FenceBarrierInit();
}

// The launches of a call overlap: each begins while the one before it ends.
// - A launch of gate and up waits for everything before it, and only then lets the next one begin.
//   So every later launch finds units, tiles, weights and x complete.
// - In a launch of down, the warp that copies h waits for it and then lets the next launch begin.
//   Other warps start to copy weights before.

template <Packing kPacking, bool kGateUp, int kMost, bool kPlain>
__device__ __forceinline__ void RunCta(const PromptGemmArgs& args, uint8_t* shared) {
  using Ring = PromptRing<kPacking, kMost>;
  constexpr int kGroups = PromptWarpGroups(kPacking, kMost);
  constexpr int kConsumerWarps = 4 * kGroups;
  const Ring ring{(SharedAddress(shared) + 1023) & ~1023u};
  const uint32_t slot_offset = ring.Barriers() + Ring::kBarrierBytes - SharedAddress(shared);
  auto* slots = reinterpret_cast<PromptSlot<kMost>*>(shared + slot_offset);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) InitBarriers<kPacking, kGateUp, kMost>(ring);
  __syncthreads();
  if (kGateUp) {
    GridDependencySync();
    TriggerDependentLaunch();
  }
  if (warp >= kConsumerWarps) {
    GiveRegisters<ProducerRegisters(kGroups)>();
    const int role = warp - kConsumerWarps;
    FenceAsyncProxy();  // h was written by ordinary stores, and weights may have been
    if (role == kWeightWarp) {
      if (!kGateUp) {
        GridDependencySync();
        TriggerDependentLaunch();
        FenceAsyncProxy();
      }
      BringWeights<kPacking, kGateUp, kMost>(ring, slots);
    } else if (role == kScheduleWarp) {
      // The scheduling warp reads the scales of h.
      if (HasRowScales(kPacking) && !kGateUp) GridDependencySync();
      Schedule<kPacking, kGateUp, kMost>(args, ring, slots);
    } else if (kGateUp && role < kHelperWarp) {
      GatherTokens<kPacking, kMost>(args, ring, slots, role - kGatherWarp);
    } else if constexpr (PromptHelpers(kGateUp, kMost) > 0) {
      if (role >= FirstHelper(kMost)) {
        HelpWithWeights<kPacking, kGateUp, kMost>(ring, slots, role - FirstHelper(kMost));
      }
    }
  } else {
    TakeRegisters<ConsumerRegisters(kGroups, kMost)>();
    const int lane = __shfl_sync(~0u, static_cast<int>(threadIdx.x % 32), threadIdx.x % 32);
    PromptConsumer<kPacking, kGateUp, kMost> consumer(ring, warp / 4, warp % 4, lane);
    SlotPlace at;
    while (true) {
      Await(ring.SlotFull(at.stage()), at.parity());
      const PromptSlot<kMost>& slot = slots[at.stage()];
      if (slot.columns == 0) break;
      RunColumns<kPacking, kGateUp, kMost, kPlain>(consumer, args, slot);
      __syncwarp();
      if (lane == 0) Arrive(ring.SlotEmpty(at.stage()));
      at.Next();
    }
  }
}
#endif

template <Packing kPacking, bool kGateUp, int kMost, bool kPlain>
__global__ void __launch_bounds__(PromptThreads(PromptWarpGroups(kPacking, kMost), kMost), 1)
    PromptGemmKernel(const __grid_constant__ PromptGemmArgs args) {
#ifdef MOERT_PROMPT_PRODUCTS
  extern __shared__ uint8_t shared[];
  RunCta<kPacking, kGateUp, kMost, kPlain>(args, shared);
#endif
}

/// Whether a kernel has a body in the code that the current device runs: an empty one needs few
/// registers.
template <typename Kernel>
bool HasCode(Kernel kernel) {
  cudaFuncAttributes code;
  if (cudaFuncGetAttributes(&code, kernel) == cudaSuccess) return code.numRegs > 64;
  cudaGetLastError();
  return false;
}

template <Packing kPacking, bool kGateUp, int kMost>
int LaunchOne(const PromptGemmArgs& args, cudaStream_t stream) {
  constexpr int kBytes = PromptRing<kPacking, kMost>::kBytes;
  const bool plain = args.biased == 0 && (!kGateUp || args.activation.plain != 0);
  const auto kernel = plain ? PromptGemmKernel<kPacking, kGateUp, kMost, true>
                            : PromptGemmKernel<kPacking, kGateUp, kMost, false>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  return LaunchEarly(kernel, args.ctas, PromptThreads(PromptWarpGroups(kPacking, kMost), kMost),
                     kBytes, stream, args);
}

template <Packing kPacking, bool kGateUp>
int LaunchMost(const PromptGemmArgs& args, cudaStream_t stream) {
  switch (args.most) {
    case 64:
      return LaunchOne<kPacking, kGateUp, 64>(args, stream);
    case 112:
      if constexpr (kPacking == Packing::kBf16 || kPacking == Packing::kF8BlockF8) {
        return LaunchOne<kPacking, kGateUp, 112>(args, stream);
      }
      return cudaErrorInvalidValue;
    case 160:
      if constexpr (kPacking != Packing::kF8BlockF8) {
        return LaunchOne<kPacking, kGateUp, 160>(args, stream);
      }
      return cudaErrorInvalidValue;
    case 256:
      if constexpr (kPacking != Packing::kW4A8 && !IsE4m3(kPacking)) {
        return LaunchOne<kPacking, kGateUp, 256>(args, stream);
      }
      return cudaErrorInvalidValue;
    default:
      return cudaErrorInvalidValue;
  }
}

template <Packing kPacking>
int LaunchPrompt(const PromptGemmArgs& args, int product, cudaStream_t stream) {
  if (args.form == PromptForm::kMma) return LaunchMma<kPacking>(args, product, stream);
  return product == 0 ? LaunchMost<kPacking, true>(args, stream)
                      : LaunchMost<kPacking, false>(args, stream);
}

template <Packing kPacking>
bool HasMmaCode() {
  return HasCode(PromptMmaKernel<kPacking, true, 160>);
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_KERNEL_CUH_
