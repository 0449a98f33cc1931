// Stores act(gate) * up of a tile of family P in e4m3; the tile's 128 channels of a column share a
// scale.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_QUANTIZED_H_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_QUANTIZED_H_CUH_

#include <cstdint>

#include "kernels/cuda/primitives/activation.cuh"
#include "kernels/cuda/primitives/pipeline.cuh"
#include "kernels/cuda/prompt/prompt_ring.cuh"
#include "kernels/cuda/prompt/prompt_store.cuh"
#include "kernels/cuda/prompt/prompt_warp.cuh"
#include "quant/f8_group.h"

namespace moert::cuda {

/// Two e4m3, `low` in the lower byte; larger values saturate to 448.
__device__ __forceinline__ uint32_t PackF8(float low, float high) {
  uint16_t v;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(v) : "f"(high), "f"(low));
  return v;
}
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
/// behind them the exponents of every warp.
template <int kMost, int kGroups>
struct PromptQuantizedH {
  using Warp = PromptWarp<true, kMost, kGroups>;
  static_assert(PromptRowBlocks(kMost) == 2 * kF8GroupChannels / 16);
  static constexpr bool kEights = Warp::kBlocks == 1;  // a thread has one channel, else two
  static constexpr int kThreads = 128 * kGroups;
  static constexpr uint32_t kExponentsAt = kMost * 128;
  static_assert(kExponentsAt + 4 * kGroups * kMost <= kPromptStaging);

  const Warp& of;
  const uint32_t staging;

  template <int kColumns>
  __device__ __forceinline__ void Store(const PromptSlot<kMost>& slot, bool silu,
                                        float (&d)[Warp::kBlocks][kColumns / 2]) const {
    constexpr int kWords = (kColumns / 8 + 1) / 2;
    const int block = slot.row_tile * Warp::kOfGate + RowBlock();
    const bool there = block < slot.row_blocks;
    PromptStore<true, kMost, kGroups>::template Activate<kColumns>(silu, there, d);
    if constexpr (kEights) Barrier();  // groups that exchange use the same memory
    uint32_t exponents[kWords];
    OfWarp<kColumns>(d[0], exponents);
    OfColumns<kColumns>(exponents);
    Quantize<kColumns>(d[0], exponents);
    if (of.group == 0 && of.warp == 0 && of.lane < 4) {
      float* const scales = const_cast<float*>(slot.of_columns) + slot.row_tile * kColumns;
#pragma unroll
      for (int i = 0; i < kColumns / 4; ++i) {
        scales[i / 2 * 8 + 2 * of.lane + i % 2] =
            __uint_as_float(F8GroupScale(Exponent(exponents, i)));
      }
    }
    Barrier();
    uint8_t* const h = slot.h + int64_t{slot.row_tile} * kColumns * 128;
    const int thread = (of.group * 4 + of.warp) * 32 + of.lane;
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
  /// The exponent of a thread's i-th column, a byte.
  __device__ __forceinline__ static int Exponent(const uint32_t* words, int i) {
    return static_cast<int>(words[i / 4] >> 8 * (i % 4) & 0xff);
  }
  template <int kWords>
  __device__ __forceinline__ static void Largest(uint32_t (&words)[kWords]) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
#pragma unroll
      for (uint32_t& word : words) {
        word = __vmaxu4(word, __shfl_xor_sync(~0u, word, distance));
      }
    }
  }
  /// Computes the exponents of the thread's columns over the warp's channels, four in a word.
  template <int kColumns, int kWords>
  __device__ __forceinline__ void OfWarp(const float (&h)[kColumns / 2],
                                         uint32_t (&words)[kWords]) const {
#pragma unroll
    for (uint32_t& word : words) word = 0;
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
      constexpr uint32_t kMagnitude = 0x7fffffffu;
      const int at = i / 2 * 4 + i % 2;
      uint32_t bits = __float_as_uint(h[at]) & kMagnitude;
      if constexpr (!kEights) bits = max(bits, __float_as_uint(h[at + 2]) & kMagnitude);
      words[i / 4] |= static_cast<uint32_t>(F8GroupExponent(bits)) << 8 * (i % 4);
    }
    Largest(words);
  }
  /// Extends them to the channels of all warps: of the eight lanes with the same columns, each
  /// reads the exponents of one or two warps.
  template <int kColumns, int kWords>
  __device__ __forceinline__ void OfColumns(uint32_t (&words)[kWords]) const {
    constexpr uint32_t kOfWarp = kWords * 16;
    const uint32_t at = staging + kExponentsAt + (of.lane & 3) * 4;
    if (of.lane < 4) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        StoreShared4(at + (of.group * 4 + of.warp) * kOfWarp + w * 16, words[w]);
      }
    }
    Barrier();
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      words[w] = LoadShared4(at + (of.lane >> 2) * kOfWarp + w * 16);
      if constexpr (kGroups == 4) {
        words[w] = __vmaxu4(words[w], LoadShared4(at + (8 + (of.lane >> 2)) * kOfWarp + w * 16));
      }
    }
    Largest(words);
  }
  template <int kColumns, int kWords>
  __device__ __forceinline__ void Quantize(const float (&h)[kColumns / 2],
                                           const uint32_t (&words)[kWords]) const {
    const uint32_t piece = RowBlock(), g = of.lane >> 2;
    const uint32_t in_piece = g / 2 * 4 + (g & 1) * 2 + (kEights ? of.Eight() % 2 : 0);
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
      const float inverse = __uint_as_float(F8GroupInverse(Exponent(words, i)));
      const uint32_t column = i / 2 * 8 + 2 * (of.lane & 3) + i % 2;
      const uint32_t at = staging + column * 128 + ((piece ^ (column & 7)) * 16) + in_piece;
      const int from = i / 2 * 4 + i % 2;
      if constexpr (kEights) {
        StoreSharedByte(at, PackF8(h[from] * inverse, 0));
      } else {
        StoreSharedHalf(at, PackF8(h[from] * inverse, h[from + 2] * inverse));
      }
    }
  }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_QUANTIZED_H_CUH_
