// Family P on devices without wgmma: the units, tiles and arrays of prompt_gemm.h, multiplied by
// mma.sync.
//
// The eight warps of a CTA all load and multiply. Asynchronous copies fill a ring of stages; a warp
// has 16 or 32 rows of weights and all columns of the unit, or half of them. Fragments of weights
// are made by prompt_weights.cuh, prompt_imported.cuh and prompt_int8.cuh; fragments of tokens are
// loaded by ldmatrix.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_MMA_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_MMA_CUH_

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/mma.cuh"
#include "kernels/cuda/prompt/prompt_mma_bytes.cuh"
#include "kernels/cuda/prompt/prompt_mma_ring.cuh"
#include "kernels/cuda/prompt/prompt_mma_store.cuh"
#include "kernels/cuda/prompt/prompt_mma_tokens.cuh"
#include "kernels/cuda/prompt/prompt_roles.cuh"
#include "kernels/cuda/prompt/prompt_schedule.cuh"
#include "kernels/cuda/prompt/prompt_sums.cuh"

namespace moert::cuda {

/// The products of one tile, in bf16.
template <Packing kPacking, bool kGateUp, int kMost>
struct MmaProduct {
  using Ring = MmaRing<kPacking, kMost>;
  using Warp = MmaWarp<kGateUp, kMost>;
  static constexpr int kColumns = MmaColumns(kMost);
  static constexpr int kBlocks = Warp::kBlocks;
  static constexpr bool kImported = IsImported(kPacking);
  static constexpr bool kScaled = kPacking != Packing::kBf16;
  static constexpr int kParts = 2;  // of 64 k: registers hold the fragments of one
  static constexpr int kLaneBytes =
      kPacking == Packing::kW3 || kPacking == Packing::kW2 ? 4 : K64Bytes(kPacking) / 128;
  using Scales = std::conditional_t<kImported, ImportedRowScales<kPacking, Ring::kRowBlocks>,
                                    RowScales<kPacking, Ring::kRowBlocks>>;
  using Fragments =
      std::conditional_t<kImported, ImportedFragments<kPacking, Warp::kHalves, kParts>,
                         StageFragments<kPacking, Warp::kHalves, kParts>>;
  using Sums = float[kBlocks][kColumns / 2];  // laid out as wgmma's: see prompt_sums.cuh

  const PromptSlot<kMost>& slot;
  const Ring& ring;
  const Warp& of;
  Scales scales[kBlocks];
  int left = 0;  // of the current scale group, in 64 k

  __device__ __forceinline__ MmaProduct(const PromptSlot<kMost>& s, const Ring& r, const Warp& w)
      : slot(s), ring(r), of(w) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if constexpr (kImported) {
        scales[b].Open(slot.form, of.FirstRow(b), of.SecondRow(b), of.Matrix(b));
      } else if constexpr (kScaled) {
        scales[b].Open(of.FirstRow(b), of.SecondRow(b));
      }
    }
  }

  /// Whether a scale group begins with part `part` of the 64 k from piece k on.
  __device__ __forceinline__ bool Turns(int k, int part) {
    if constexpr (kImported) return Scales::Begins(slot.form, k, part);
    if (!kScaled || part != 0) return false;
    const bool turns = left == 0;
    left = (turns ? slot.group_k64s : left) - 1;
    return turns;
  }
  /// Begins a scale group: converts the sums so far to its units.
  __device__ __forceinline__ void Turn(int stage, int part, Sums& d) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      float ratio[2];
      if constexpr (kImported) {
        scales[b].Turn(slot.form, ring.Scales(stage), part, ratio);
      } else if constexpr (kScaled) {
        scales[b].Turn(ring.Scales(stage), ratio);
      }
      if constexpr (HasZeros(kPacking)) {
        ShiftSums<kColumns>(of.lane, ratio, scales[b].shift, ring.Floats(stage) + of.first * 4,
                            d[b]);
      } else if constexpr (kScaled) {
        ScaleSums<kColumns>(ratio, d[b]);
      }
    }
  }

  /// Adds the products of the stage's 64 k to the sums of the first kSteps times 16 columns.
  template <int kSteps>
  __device__ __forceinline__ void Add(int k, int stage, Sums& d) {
    const MmaTokens tokens(ring.Tokens(stage), of.first, of.lane);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (Turns(k, part)) Turn(stage, part, d);
      Fragments f[kBlocks];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        if constexpr (kImported) {
          if (part == 0) scales[b].ReadStage(ring.Scales(stage));
        }
        const uint32_t first =
            ring.Weights(stage) + of.RowBlock(b) * K64Bytes(kPacking) + of.lane * kLaneBytes;
        f[b].Load(part, first, first + Warp::kOfGate * K64Bytes(kPacking), of.half, scales[b]);
      }
      // A step is 16 k by 16 columns. The next step's tokens are loaded before this one's are
      // multiplied.
      constexpr int kOfPart = 4 / kParts;
      const auto load = [&](int step) {
        return tokens.Load(step % kSteps * 16, part * kOfPart + step / kSteps);
      };
      uint4 v = load(0);
#pragma unroll
      for (int step = 0; step < kOfPart * kSteps; ++step) {
        const uint4 now = v;
        if (step + 1 < kOfPart * kSteps) v = load(step + 1);
        const int i = part * kOfPart + step / kSteps, c = step % kSteps * 16;
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          MmaBf16(&d[b][c / 2], f[b].a[i], now.x, now.y);
          MmaBf16(&d[b][c / 2 + 4], f[b].a[i], now.z, now.w);
        }
      }
    }
  }

  __device__ __forceinline__ void End(const Sums& sums, float (&d)[kBlocks][kColumns / 2]) const {
    CopySums(sums, d);
    if constexpr (kScaled) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) ScaleSums<kColumns>(scales[b].f, d[b]);
    }
  }
};

template <Packing kPacking, bool kGateUp, int kMost>
using MmaProductOf = std::conditional_t<Is8Bit(kPacking), MmaByteProduct<kPacking, kGateUp, kMost>,
                                        MmaProduct<kPacking, kGateUp, kMost>>;

/// Multiplies a tile of at most kSteps times 16 columns a warp.
template <int kSteps, Packing kPacking, bool kGateUp, int kMost>
__device__ __forceinline__ void MultiplyMma(
    const PromptGemmArgs& args, const PromptSlot<kMost>& slot, const MmaRing<kPacking, kMost>& ring,
    MmaProductOf<kPacking, kGateUp, kMost>& product,
    typename MmaProductOf<kPacking, kGateUp, kMost>::Sums& sums) {
  constexpr int kStages = MmaRing<kPacking, kMost>::kStages;
  constexpr int kK64s = PieceK64s(kPacking);
  MmaLoads<kPacking, kGateUp, kMost> loads(args, slot, ring);
  const int pieces = (slot.k64s + kK64s - 1) / kK64s;
#pragma unroll
  for (int k = 0; k < kStages - 1; ++k) {
    if (k < pieces) loads.Begin(k, k);
    CopyAsyncCommit();
  }
  int stage = 0, free = kStages - 1;
#pragma unroll 1
  for (int k = 0; k < pieces; ++k) {
    CopyAsyncWait<kStages - 2>();
    __syncthreads();  // all threads see the stage, and none still reads the one before it
    if (k + kStages - 1 < pieces) loads.Begin(k + kStages - 1, free);
    CopyAsyncCommit();
    product.template Add<kSteps>(k, stage, sums);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    free = free + 1 == kStages ? 0 : free + 1;
  }
}

template <Packing kPacking, bool kGateUp, int kMost>
__device__ __forceinline__ void RunMmaTile(const PromptGemmArgs& args,
                                           const PromptSlot<kMost>& slot,
                                           const MmaRing<kPacking, kMost>& ring) {
  using Product = MmaProductOf<kPacking, kGateUp, kMost>;
  const int warp = threadIdx.x / 32;
  const MmaWarp<kGateUp, kMost> of(slot.columns, warp, threadIdx.x % 32);
  Product product(slot, ring, of);
  typename Product::Sums sums;
  ClearSums(sums);
  constexpr int kMany = MmaColumns(kMost) / 16, kSome = kMost == 64 ? 3 : 4;
  const int steps = MmaSteps(kMost, slot.columns);
  if (steps > kSome) {
    MultiplyMma<kMany, kPacking, kGateUp, kMost>(args, slot, ring, product, sums);
  } else if (steps > 2) {
    MultiplyMma<kSome, kPacking, kGateUp, kMost>(args, slot, ring, product, sums);
  } else {
    MultiplyMma<2, kPacking, kGateUp, kMost>(args, slot, ring, product, sums);
  }
  float d[Product::kBlocks][Product::kColumns / 2];
  product.End(sums, d);
  __syncthreads();  // the ring's memory is reused for the results
  const MmaStore<kGateUp, kMost> store{args, slot, of, ring.base};
  store.Run(d);
}

template <Packing kPacking, bool kGateUp, int kMost>
__global__ void __launch_bounds__(kMmaThreads, Is8Bit(kPacking) ? 1 : 2)
    PromptMmaKernel(const __grid_constant__ PromptGemmArgs args) {
#ifndef MOERT_PROMPT_PRODUCTS
  if constexpr (IsE4m3(kPacking) && !kHasMmaF8) return;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ PromptSlot<kMost> slot;
  __shared__ int next;
  GridDependencySync();
  TriggerDependentLaunch();
  constexpr int kProduct = kGateUp ? 0 : 1, kIndex = PromptIndex(kPacking);
  const MmaRing<kPacking, kMost> ring{SharedAddress(shared)};
  const PromptTable& table = args.table;
  const int end = table.begins[kProduct][kIndex + 1];
  int at = table.begins[kProduct][kIndex] + static_cast<int>(blockIdx.x);
  while (at < end) {
    if (threadIdx.x < 32) {
      const uint32_t tile = table.tiles[kProduct][at];
      const PromptUnit& unit = table.units[tile & 0xffffu];
      if (threadIdx.x == 0) {
        FillSlot<kPacking, kGateUp>(args, unit, static_cast<int>(tile >> 16), &slot);
        next = atomicAdd(&table.tickets[kProduct][kIndex], 1) + static_cast<int>(gridDim.x);
      }
      FillRows<kPacking, kGateUp>(args, unit, unit.count, unit.columns, &slot);
    }
    __syncthreads();
    at = next;
    RunMmaTile<kPacking, kGateUp, kMost>(args, slot, ring);
    __syncthreads();
  }
#endif
}

template <Packing kPacking, bool kGateUp, int kMost>
int LaunchMma(const PromptGemmArgs& args, cudaStream_t stream) {
  constexpr int kBytes = MmaRing<kPacking, kMost>::kBytes;
  const auto kernel = PromptMmaKernel<kPacking, kGateUp, kMost>;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error == cudaSuccess) {  // two CTAs, where an SM has room for them
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
  }
  if (error != cudaSuccess) return error;
  return LaunchEarly(kernel, args.ctas, kMmaThreads, kBytes, stream, args);
}

template <Packing kPacking>
int LaunchMma(const PromptGemmArgs& args, int product, cudaStream_t stream) {
  if (args.most != 64 && args.most != 160) return cudaErrorInvalidValue;
  if (product == 0) {
    return args.most == 64 ? LaunchMma<kPacking, true, 64>(args, stream)
                           : LaunchMma<kPacking, true, 160>(args, stream);
  }
  return args.most == 64 ? LaunchMma<kPacking, false, 64>(args, stream)
                         : LaunchMma<kPacking, false, 160>(args, stream);
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_MMA_CUH_
