// Stores act(gate) * up of a tile of family P in e4m3; the tile's 128 channels of a column share a
// scale.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_QUANTIZED_H_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_QUANTIZED_H_CUH_

#include <cstdint>

#include "kernels/cuda/primitives/activation.cuh"
#include "kernels/cuda/primitives/e4m3.cuh"
#include "kernels/cuda/primitives/pipeline.cuh"
#include "kernels/cuda/prompt/prompt_ring.cuh"
#include "kernels/cuda/prompt/prompt_store.cuh"
#include "kernels/cuda/prompt/prompt_warp.cuh"
#include "quant/f8_group.h"

namespace moert::cuda {

__device__ __forceinline__ void StoreSharedHalf(uint32_t at, uint32_t v) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(static_cast<uint16_t>(v)) : "memory");
}
__device__ __forceinline__ void StoreSharedByte(uint32_t at, uint32_t v) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
__device__ __forceinline__ void StoreShared4(uint32_t at, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}

/// `staging`: kPromptStaging bytes of shared memory for all groups: rows of h to be stored, and
/// behind them a half word for every warp and column.
template <int kMost, int kGroups>
struct PromptQuantizedH {
  using Warp = PromptWarp<true, kMost, kGroups>;
  static_assert(PromptRowBlocks(kMost) == 2 * kF8GroupChannels / 16);
  static constexpr bool kEights = Warp::kBlocks == 1;  // a thread has one channel, else two
  static constexpr int kWarps = 4 * kGroups;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr uint32_t kHalvesAt = kMost * 128;
  static_assert(kHalvesAt + kWarps * kMost * 2 <= kPromptStaging && kMost <= kThreads);

  const Warp& of;
  const uint32_t staging;

  template <int kColumns>
  __device__ __forceinline__ void Store(const PromptSlot<kMost>& slot, bool silu,
                                        float (&d)[Warp::kBlocks][kColumns / 2]) const {
    const int block = slot.row_tile * Warp::kOfGate + RowBlock();
    const bool there = block < slot.row_blocks;
    PromptStore<true, kMost, kGroups>::template Activate<kColumns>(silu, there, d);
    if constexpr (kEights) Barrier();  // groups that exchange use the same memory
    Round<kColumns>(d[0]);
    Barrier();
    const int thread = (of.group * 4 + of.warp) * 32 + of.lane;
    if (thread < kColumns) {
      float* const scales = const_cast<float*>(slot.of_columns) + slot.row_tile * kColumns;
      scales[thread] = ColumnScale<kColumns>(thread);
    }
    Barrier();
    Quantize<kColumns>(d[0]);
    Barrier();
    uint8_t* const h = slot.h + int64_t{slot.row_tile} * kColumns * 128;
#pragma unroll
    for (int i = 0; i < kColumns * 8; i += kThreads) {
      const int piece = i + thread;
      if (piece < kColumns * 8) {
        *reinterpret_cast<uint4*>(h + piece * 16) = LoadShared16(staging + piece * 16);
      }
    }
    if constexpr (kEights) Barrier();
  }

 private:
  __device__ __forceinline__ int RowBlock() const {
    return kEights ? of.EightRowBlock() : of.RowBlock(0);
  }
  /// Synchronizes all consumer warps.
  __device__ __forceinline__ static void Barrier() {
    asm volatile("bar.sync 8, %0;" ::"n"(kThreads) : "memory");
  }
  /// The half word of a warp and column; columns lie side by side.
  template <int kColumns>
  __device__ __forceinline__ uint32_t HalfAt(int warp, int column) const {
    return staging + kHalvesAt + (warp * kColumns + column) * 2;
  }

  /// Rounds two values to bf16. Their magnitudes, in half words.
  __device__ __forceinline__ static uint32_t RoundTwo(float* v) {
    const uint32_t two = PackBf16(v[0], v[1]);
    v[0] = __uint_as_float(two << 16);
    v[1] = __uint_as_float(two & 0xffff0000u);
    return two & 0x7fff7fffu;
  }
  /// Rounds h to bf16, as all h is before it is quantized, and stores the largest magnitude of the
  /// warp's channels in every column.
  template <int kColumns>
  __device__ __forceinline__ void Round(float (&h)[kColumns / 2]) const {
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      uint32_t word = RoundTwo(h + 4 * j);
      if constexpr (!kEights) word = __vmaxu2(word, RoundTwo(h + 4 * j + 2));
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) {
        word = __vmaxu2(word, __shfl_xor_sync(~0u, word, distance));
      }
      if (of.lane < 4) {
        StoreShared4(HalfAt<kColumns>(of.group * 4 + of.warp, 8 * j + 2 * of.lane), word);
      }
    }
  }
  /// The scale of a column; its inverse's exponent replaces the first warp's half word.
  template <int kColumns>
  __device__ __forceinline__ float ColumnScale(int column) const {
    uint32_t largest = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      largest = max(largest, LoadSharedHalf(HalfAt<kColumns>(warp, column)));
    }
    const int exponent = F8GroupExponent(largest << 16);
    StoreSharedHalf(HalfAt<kColumns>(0, column), F8GroupInverse(exponent) >> 23);
    return __uint_as_float(F8GroupScale(exponent));
  }
  template <int kColumns>
  __device__ __forceinline__ void Quantize(const float (&h)[kColumns / 2]) const {
    const uint32_t piece = RowBlock(), g = of.lane >> 2;
    const uint32_t in_piece = g / 2 * 4 + (g & 1) * 2 + (kEights ? of.Eight() % 2 : 0);
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const uint32_t first = 8 * j + 2 * (of.lane & 3);
      const uint32_t exponents = LoadShared4(HalfAt<kColumns>(0, first));
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const uint32_t exponent = c == 0 ? exponents & 0xffff : exponents >> 16;
        const float inverse = __uint_as_float(exponent << 23);
        const uint32_t column = first + c;
        const uint32_t at = staging + column * 128 + ((piece ^ (column & 7)) * 16) + in_piece;
        const int from = 4 * j + c;
        if constexpr (kEights) {
          StoreSharedByte(at, PackF8(h[from] * inverse, 0));
        } else {
          StoreSharedHalf(at, PackF8(h[from] * inverse, h[from + 2] * inverse));
        }
      }
    }
  }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_QUANTIZED_H_CUH_
