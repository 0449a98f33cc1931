// Gate logits of many tokens, by tensor cores (gate_logits.cu).
#ifndef MOERT_KERNELS_CUDA_ROUTE_GATE_TILES_CUH_
#define MOERT_KERNELS_CUDA_ROUTE_GATE_TILES_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/few/few_products.h"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/mma.cuh"
#include "kernels/cuda/primitives/packing.cuh"
#include "kernels/cuda/route/route.h"

namespace moert::cuda {

/// Splits two numbers into sums of bf16 parts for tensor cores, the first number in the lower half
/// of every part. Each part is the rounded remainder. Three parts are exactly an fp32 of 24 bits,
/// two an f16 (but for parts below 2^-133).
template <int kParts>
__device__ __forceinline__ void SplitTwo(float low, float high, uint32_t (&parts)[kParts]) {
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(parts[p]) : "f"(high), "f"(low));
    low -= __uint_as_float(parts[p] << 16);
    high -= __uint_as_float(parts[p] & 0xffff0000u);
  }
}

/// Splits four elements of type T as they lie in memory: the parts of the first two, of the others.
template <typename T, int kParts>
__device__ __forceinline__ void SplitFour(const uint32_t (&words)[sizeof(T)],
                                          uint32_t (&parts)[kParts][2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      static_assert(kParts == 1);
      parts[0][i] = words[i];
    } else {
      float2 two;
      if constexpr (std::is_same_v<T, __half>) {
        two = __half22float2(
            __halves2half2(__ushort_as_half(words[i] & 0xffffu), __ushort_as_half(words[i] >> 16)));
      } else {
        two = make_float2(__uint_as_float(words[2 * i]), __uint_as_float(words[2 * i + 1]));
      }
      uint32_t of[kParts];
      SplitTwo(two.x, two.y, of);
#pragma unroll
      for (int p = 0; p < kParts; ++p) parts[p][i] = of[p];
    }
  }
}

/// Parts of the width, each of one warp, whose sums are added in order.
constexpr int kGateParts = 8;
constexpr int kGateThreads = 32 * kGateParts;

struct GateArgs {
  int tokens;
  int hidden;
  int64_t stride;  // of x, elements
  const float* gate;
  int experts;
  float* logits;
  uint8_t* packed;  // null: rows are not packed
  int64_t packed_stride;
  GateOf second;  // for few tokens only, like zeros
  GateZeros zeros;
};

/// 16 bytes of a row's elements from k on into shared memory, zeros from `end` on. kAligned: rows
/// begin at multiples of 16 bytes; the copy is asynchronous.
template <bool kAligned, typename T>
__device__ __forceinline__ void CopyPiece(const T* row, int k, int end, uint32_t to) {
  constexpr int kElements = 16 / sizeof(T);
  const int count = max(0, min(kElements, end - k));
  if constexpr (kAligned) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(row + (count > 0 ? k : 0)), "r"(count * static_cast<int>(sizeof(T)))
                 : "memory");
  } else {
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
    const auto* bits = reinterpret_cast<const Bits*>(row);
    constexpr int kAWord = 4 / sizeof(T);
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const uint32_t v = i < count ? bits[k + i] : 0;
      words[i / kAWord] |= v << (i % kAWord * 16);
    }
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]),
                 "r"(words[2]), "r"(words[3])
                 : "memory");
  }
}

/// Rows of 32 elements in shared memory, of which lane t of four takes 8 t .. 8 t + 7. Pieces of 16
/// bytes of wide rows are swapped in every other row, so that lanes meet in few banks.
template <typename T>
struct RowPieces {
  static constexpr int kBytes = 32 * sizeof(T);
  static constexpr int kPieces = kBytes / 16;
  static __device__ __forceinline__ uint32_t Piece(uint32_t base, int row, int piece) {
    return base + row * kBytes + (sizeof(T) == 4 ? piece ^ (row & 1) : piece) * 16;
  }
  /// Copies kRows rows of 32 elements, from element k on. Called by a warp.
  template <bool kAligned, int kRows, typename RowOf>
  static __device__ __forceinline__ void Copy(uint32_t base, int k, int end, RowOf row_of) {
    constexpr int kAtOnce = 32 / kPieces;
    const int piece = threadIdx.x % kPieces;
#pragma unroll
    for (int i = 0; i < kRows; i += kAtOnce) {
      const int row = i + static_cast<int>(threadIdx.x) % 32 / kPieces;
      CopyPiece<kAligned>(row_of(row), k + piece * (16 / static_cast<int>(sizeof(T))), end,
                          Piece(base, row, piece));
    }
  }
  /// Half of a lane's elements, as they lie in memory.
  static __device__ __forceinline__ void Load(uint32_t base, int row, int half,
                                              uint32_t (&words)[sizeof(T)]) {
    const int t = threadIdx.x % 4;
    if constexpr (sizeof(T) == 4) {
      const uint32_t at = Piece(base, row, 2 * t + half);
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                   : "r"(at)
                   : "memory");
    } else {
      const uint32_t at = Piece(base, row, t) + half * 8;
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                   : "=r"(words[0]), "=r"(words[1])
                   : "r"(at)
                   : "memory");
    }
  }
};

/// How many bf16 a hidden state is the sum of.
template <typename T>
constexpr int kRowParts = sizeof(T) == 4              ? 3
                          : std::is_same_v<T, __half> ? 2
                                                      : 1;

/// Shared memory of GateTilesKernel: stages of 32 channels, a ring per warp.
template <typename T, int kM, int kN, int kStages>
struct GateRing {
  static constexpr int kX = 16 * kM * RowPieces<T>::kBytes;
  static constexpr int kStage = kX + 8 * kN * RowPieces<float>::kBytes;
  static constexpr int kBytes = kGateParts * kStages * kStage;
};

/// Adds the products of a stage's 32 channels, hidden states at `x` and weights at `weights` in
/// shared memory, to `total`: those of 16 channels at a time.
template <typename T, int kM, int kN>
__device__ __forceinline__ void MultiplyStage(uint32_t x, uint32_t weights, int lane,
                                              float (&total)[kM][kN][4]) {
  constexpr int kX = kRowParts<T>;
  // Chains of products side by side, of kN.
  constexpr int kTogether = kM >= 4 ? 1 : 4 / kM < kN ? 4 / kM : kN;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t a[kX][kM][4];
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      uint32_t words[sizeof(T)], parts[kX][2];
      RowPieces<T>::Load(x, i * 8 + lane / 4, half, words);
      SplitFour<T>(words, parts);
#pragma unroll
      for (int p = 0; p < kX; ++p) {
        a[p][i / 2][i % 2] = parts[p][0];
        a[p][i / 2][i % 2 + 2] = parts[p][1];
      }
    }
#pragma unroll
    for (int n = 0; n < kN; n += kTogether) {
      uint32_t b[kTogether][3][2];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        uint32_t words[4];
        RowPieces<float>::Load(weights, (n + j) * 8 + lane / 4, half, words);
        SplitFour<float>(words, b[j]);
      }
      float d[kM][kTogether][4] = {};
#pragma unroll
      for (int order = 2; order >= 0; --order) {
#pragma unroll
        for (int p = 0; p < kX && p <= order; ++p) {
#pragma unroll
          for (int i = 0; i < kM * kTogether; ++i) {
            const int m = i / kTogether, j = i % kTogether;
            MmaBf16(d[m][j], a[p][m], b[j][order - p][0], b[j][order - p][1]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kM * kTogether * 4; ++i) {
        const int m = i / 4 / kTogether, j = i / 4 % kTogether;
        total[m][n + j][i % 4] += d[m][j][i % 4];
      }
    }
  }
}

/// The warps' sums of 16 tokens, exchanged in shared memory.
template <int kN>
using GateSums = float[kGateParts][16][8 * kN + 8];

/// Sums the warps' parts in order and stores the logits.
template <int kM, int kN>
__device__ __forceinline__ void StoreSums(const GateArgs& args, int first_token, int first_expert,
                                          int warp, int lane, GateSums<kN>& parts,
                                          const float (&total)[kM][kN][4]) {
  constexpr int kWide = 8 * kN;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    if (m > 0) __syncthreads();
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const int column = n * 8 + lane % 4 * 2;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        *reinterpret_cast<float2*>(&parts[warp][lane / 4 + 8 * r][column]) =
            make_float2(total[m][n][2 * r], total[m][n][2 * r + 1]);
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = threadIdx.x; i < 16 * kWide; i += kGateThreads) {
      const int row = i / kWide, column = i % kWide;
      float sum = parts[0][row][column];
#pragma unroll
      for (int p = 1; p < kGateParts; ++p) sum += parts[p][row][column];
      const int token = first_token + m * 16 + row, expert = first_expert + column;
      if (token < args.tokens && expert < args.experts) {
        args.logits[static_cast<int64_t>(token) * args.experts + expert] = sum;
      }
    }
  }
}

/// The next copy of rows or of weights: a step of a tile, and the stage that it goes to.
template <int kStages>
struct GatePlace {
  int tile, step, stage;

  __device__ __forceinline__ void Next(int steps) {
    stage = stage + 1 == kStages ? 0 : stage + 1;
    if (++step == steps) {
      step = 0;
      tile += static_cast<int>(gridDim.x);
    }
  }
};

/// To shared memory: 32 channels from `k` on of the hidden states from token `first` on.
template <bool kAligned, int kM, typename T>
__device__ __forceinline__ void CopyRows(const GateArgs& args, const T* x, int first, uint32_t to,
                                         int k) {
  RowPieces<T>::template Copy<kAligned, 16 * kM>(to, k, args.hidden, [&](int row) {
    return x + min(first + row, args.tokens - 1) * args.stride;
  });
}
/// The same of the weights of the experts from `first` on.
template <bool kAligned, int kN>
__device__ __forceinline__ void CopyWeights(const GateArgs& args, int first, uint32_t to, int k) {
  RowPieces<float>::template Copy<kAligned, 8 * kN>(to, k, args.hidden, [&](int row) {
    return args.gate + static_cast<int64_t>(min(first + row, args.experts - 1)) * args.hidden;
  });
}

/// A tile is 16 kM tokens by 8 kN experts; CTAs take one after another. Weights are the sum of
/// three bf16, hidden states of one, two or three. Products below 2^-26 of the whole are left out;
/// the others are exact. Tensor cores add the products of 16 channels, smallest first, and fp32
/// additions add up their results.
///
/// Each warp loads its part of the width through a ring of its own in shared memory. The first
/// loads of a tile overlap with the end of the tile before it. In every 32 channels lane t of four
/// takes 8 t .. 8 t + 7, four of them for a product of 16.
template <typename T, int kM, int kN, int kStages, bool kAligned>
__global__ void __launch_bounds__(kGateThreads)
    GateTilesKernel(const T* x, const __grid_constant__ GateArgs args) {
  using Ring = GateRing<T, kM, kN, kStages>;
  extern __shared__ __align__(128) uint8_t shared[];
  TriggerDependentLaunch();
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int across = (args.experts + 8 * kN - 1) / (8 * kN);
  const int tiles = across * ((args.tokens + 16 * kM - 1) / (16 * kM));
  const int all_steps = (args.hidden + 31) / 32;
  const int first_step = all_steps * warp / kGateParts;
  const int steps = all_steps * (warp + 1) / kGateParts - first_step;
  const auto ring =
      static_cast<uint32_t>(__cvta_generic_to_shared(shared)) + warp * kStages * Ring::kStage;

  const auto copy_rows = [&](const GatePlace<kStages>& at) {
    if (at.tile >= tiles) return;
    CopyRows<kAligned, kM>(args, x, at.tile / across * (16 * kM), ring + at.stage * Ring::kStage,
                           (first_step + at.step) * 32);
  };
  const auto copy_weights = [&](const GatePlace<kStages>& at) {
    if (at.tile >= tiles) return;
    CopyWeights<kAligned, kN>(args, at.tile % across * (8 * kN),
                              ring + at.stage * Ring::kStage + Ring::kX,
                              (first_step + at.step) * 32);
  };
  const GatePlace<kStages> begin{steps > 0 ? static_cast<int>(blockIdx.x) : tiles, 0, 0};
  // Weights are constants: they need not wait for the preceding kernels.
  GatePlace<kStages> next = begin;
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i, next.Next(steps)) copy_weights(next);
  GridDependencySync();
  next = begin;
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i, next.Next(steps)) {
    copy_rows(next);
    CopyAsyncCommit();
  }
  __shared__ __align__(8) GateSums<kN> parts;
  uint32_t stage = ring;
#pragma unroll 1
  for (int tile = blockIdx.x; tile < tiles; tile += static_cast<int>(gridDim.x)) {
    float total[kM][kN][4] = {};
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      CopyAsyncWait<kStages - 2>();
      __syncwarp();
      copy_rows(next);  // into the stage of the step before
      copy_weights(next);
      next.Next(steps);
      CopyAsyncCommit();
      MultiplyStage<T>(stage, stage + Ring::kX, lane, total);
      stage = stage + Ring::kStage == ring + kStages * Ring::kStage ? ring : stage + Ring::kStage;
    }
    StoreSums<kM, kN>(args, tile / across * (16 * kM), tile % across * (8 * kN), warp, lane, parts,
                      total);
    __syncthreads();  // the exchanged sums have been read
  }
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_ROUTE_GATE_TILES_CUH_
