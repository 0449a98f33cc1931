// The products of a tile in 8 bits by mma.sync (prompt_int8.cuh, prompt_mma.cuh).
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_MMA_BYTES_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_MMA_BYTES_CUH_

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/primitives/mma.cuh"
#include "kernels/cuda/prompt/prompt_int8.cuh"
#include "kernels/cuda/prompt/prompt_mma_ring.cuh"
#include "kernels/cuda/prompt/prompt_mma_tokens.cuh"
#include "kernels/cuda/prompt/prompt_sums.cuh"

namespace moert::cuda {

/// w8a8 is summed in int32 over all k. The others sum each stage separately, 16 columns at a time,
/// and add its sums in fp32: times the scales of rows and columns (w4a8, fp8_b128), or unscaled
/// until the end (w8a8_fp8).
template <Packing kPacking, bool kGateUp, int kMost>
struct MmaByteProduct {
  using Ring = MmaRing<kPacking, kMost>;
  using Warp = MmaWarp<kGateUp, kMost>;
  static constexpr int kColumns = MmaColumns(kMost);
  static constexpr int kBlocks = Warp::kBlocks;
  static constexpr bool kOneSum = kPacking == Packing::kW8A8;
  static constexpr int kLaneBytes = K64Bytes(kPacking) / 128;
  using Product = std::conditional_t<IsE4m3(kPacking), float, int32_t>;
  using Sums = std::conditional_t<kOneSum, int32_t, float>[kBlocks][kColumns / 2];

  const PromptSlot<kMost>& slot;
  const Ring& ring;
  const Warp& of;
  Int8RowScales<kPacking> scales[kBlocks];

  __device__ __forceinline__ MmaByteProduct(const PromptSlot<kMost>& s, const Ring& r,
                                            const Warp& w)
      : slot(s), ring(r), of(w) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) scales[b].Open(of.FirstRow(b), of.SecondRow(b));
  }

  /// Adds the products of piece k, in stage `stage`, to the sums of the first kSteps times 16
  /// columns.
  template <int kSteps>
  __device__ __forceinline__ void Add(int k, int stage, Sums& d) {
    Int8Fragments<kPacking, Warp::kHalves, 1> f[kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if (!HasRowScales(kPacking) || k == 0) scales[b].Read(ring.Scales(stage));
      const uint32_t first =
          ring.Weights(stage) + of.RowBlock(b) * Ring::kRun + of.lane * kLaneBytes;
      f[b].Load(0, first, first + Warp::kOfGate * Ring::kRun, of.half, scales[b]);
    }
    const MmaTokens tokens(ring.Tokens(stage), of.first, of.lane);
    uint4 v = tokens.Load(0, 0);
#pragma unroll
    for (int c = 0; c < kSteps * 16; c += 16) {
      Product apart[kBlocks][8] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // The next tokens are loaded before these are multiplied.
        const uint4 now = v;
        if (i < 3 || c + 16 < kSteps * 16) v = tokens.Load(c + (i + 1) / 4 * 16, (i + 1) % 4);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          Product* sums = apart[b];
          if constexpr (kOneSum) sums = &d[b][c / 2];
          Multiply(sums, f[b].a[i], now.x, now.y);
          Multiply(sums + 4, f[b].a[i], now.z, now.w);
        }
      }
      if (!kOneSum) AddApart(stage, c, apart, d);
    }
  }

  __device__ __forceinline__ void End(const Sums& sums, float (&d)[kBlocks][kColumns / 2]) const {
    if constexpr (HasRowScales(kPacking)) {
      ApplyScales<kColumns>(of.lane, slot.scales_of + of.first, scales, sums, d);
    } else {
      CopySums(sums, d);
    }
  }

 private:
  __device__ __forceinline__ static void Multiply(Product* sums, const uint32_t (&a)[4],
                                                  uint32_t b0, uint32_t b1) {
    if constexpr (IsE4m3(kPacking)) {
      MmaF8(sums, a, b0, b1);
    } else {
      MmaInt8(sums, a, b0, b1);
    }
  }
  __device__ __forceinline__ void AddApart(int stage, int c, const Product (&apart)[kBlocks][8],
                                           Sums& d) const {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if constexpr (HasColumnFloats(kPacking)) {
        AddScaled<16>(of.lane, scales[b].f, ring.Floats(stage) + (of.first + c) * 4, apart[b],
                      &d[b][c / 2]);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) d[b][c / 2 + i] += apart[b][i];
      }
    }
  }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_MMA_BYTES_CUH_
