// A warp's products of one unit of few-bit weights: two row blocks of weights in shared memory
// (weight_ring.cuh), with the activations of 8 or 16 tokens, which are loaded into registers one
// unit ahead.
#ifndef MOERT_KERNELS_CUDA_FEW_RING_PRODUCT_CUH_
#define MOERT_KERNELS_CUDA_FEW_RING_PRODUCT_CUH_

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/few/weight_ring.cuh"
#include "kernels/cuda/primitives/dequant.cuh"
#include "kernels/cuda/primitives/mma.cuh"
#include "kernels/cuda/primitives/packing.cuh"
#include "kernels/cuda/prompt/imported_scales.cuh"

namespace moert::cuda {

/// This lane's parts of an item: rows g and g + 8 of both row blocks, columns 2t and 2t + 1 of
/// every 8 tokens.
template <Packing kPacking, int kTokens8, int kGroups>
struct RingProduct {
  using Shape = UnitShape<kPacking>;
  using Sum = std::conditional_t<Shape::kInt, int32_t, float>;
  using Operands = std::conditional_t<Shape::kInt, uint2, uint4>;
  static constexpr bool kK32 = kPacking == Packing::kW2 || kPacking == Packing::kW3;

  using Words = std::conditional_t<Shape::kWords == 4, uint4, uint2>;
  static constexpr int kLoads = Shape::kK64s * 2;  // loads of activations per unit

  const int lane;
  uint8_t* const prepared;       // see imported_scales.cuh
  const int words;               // where the lane's words begin in 256 bytes of weights
  Operands b[kLoads][kTokens8];  // of the unit that is multiplied next
  float acc[2][kTokens8][4];
  Sum sum[2][kTokens8][4];  // since the last scaling
  float x[kTokens8][4];     // sums of the activations in `sum`, the same in every row

  __device__ __forceinline__ RingProduct(int l, const uint8_t* shared)
      : lane(l),
        prepared(WeightRing<kPacking, kGroups>::Prepared(shared)),
        words(Shape::kWords == 4
                  ? RingSwizzle<kPacking>((l & 2) * 128 + (l >> 2) * 32 + (l & 1) * 16)
                  : RingSwizzle<kPacking>((l & 2) * 64 + (l >> 2) * 16 + (l & 1) * 8)) {}

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) acc[0][n][c] = acc[1][n][c] = 0;
    }
    ClearSums();
  }

  /// Loads activations `i` of the unit at `rows`.
  __device__ __forceinline__ void Load(const uint8_t* const (&rows)[kTokens8], int i) {
    const int channel = kK32 ? (i >> 1) * 64 + (i & 1) * 16 : i * 32;
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
      const uint8_t* at = rows[n] + channel * Shape::kElement;
      auto& v = b[i][n];
      // Volatile, so that the load stays among the products.
      if constexpr (Shape::kInt) {
        asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at));
      } else {
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(at));
      }
    }
  }

  /// Multiplies words of 4-bit weights. `take` makes a word's fragment from it and the values
  /// prepared at `at` for its lower and upper rows; `after` is called after the products of each
  /// quarter.
  template <typename Sums, typename Take, typename After>
  __device__ __forceinline__ void MultiplyPairs(const uint8_t* w,
                                                const uint8_t* const (&next)[kTokens8],
                                                const uint8_t* at, Sums& to, Take take,
                                                After after) {
    const PreparedPairs<kPacking> pairs(at, lane);
    uint32_t pair[4];
    ForWords(w, next, [&](int i, const Words(&v)[2]) {
      if (i % 2 == 0) pairs.Read(i, pair);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t lower = pairs.Lower(pair[2 * (i % 2) + r]);
        const uint32_t upper = pairs.Upper(pair[2 * (i % 2) + r]);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          uint32_t a[4];
          take(j == 0 ? v[r].x : v[r].y, lower, upper, a);
          AddTo(to[r], a, b[i], j);
        }
      }
      after(i);
    });
  }

  /// Multiplies the unit in `stage` by the activations at hand and loads those at `next`.
  /// x_scales: of W4A8, the columns' scales of this unit.
  __device__ __forceinline__ void Unit(const uint8_t* stage, const uint8_t* const (&next)[kTokens8],
                                       const Decoding<kPacking>& decoding, bool zeros,
                                       const float (&x_scales)[kTokens8][2]) {
    const uint8_t* scales = stage + 2 * Shape::kBytes;
    const uint8_t* w = stage + words;
    if constexpr (kPacking == Packing::kW4A8) {
      UnitW4A8(scales, w, next, x_scales);
    } else if constexpr (kPacking == Packing::kW4) {
      UnitW4(scales, w, next, decoding, zeros);
    } else if constexpr (IsFp4(kPacking)) {
      UnitFp4(scales, w, next);
    } else if constexpr (kPacking == Packing::kW4Group) {
      UnitW4Group(scales, w, next, decoding, zeros);
    } else if constexpr (kPacking == Packing::kF8Block) {
      UnitF8Block(scales, w, next);
    } else if constexpr (kPacking == Packing::kW8) {
      UnitW8(scales, w, next, decoding, zeros);
    } else {
      UnitW3OrW2(stage, scales, w, next, decoding, zeros);
    }
  }

  /// Scales the sums of an fp4 item, after its last unit.
  __device__ __forceinline__ void ScaleItem(const Decoding<kPacking>& decoding) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float unit = kFp4Unit<kPacking>;
      if constexpr (kPacking == Packing::kNvFp4) unit *= decoding.scale[r];
#pragma unroll
      for (int n = 0; n < kTokens8; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) acc[r][n][c] *= unit;
      }
    }
  }

 private:
  static constexpr int kGroupScales = 128;  // bytes from a group's to the next one's

  // Unit, by packing.

  __device__ __forceinline__ void UnitW4A8(const uint8_t* scales, const uint8_t* w,
                                           const uint8_t* const (&next)[kTokens8],
                                           const float (&x_scales)[kTokens8][2]) {
    const RingScales s(scales, lane, false);
    ForWords(w, next, [&](int i, const Words(&v)[2]) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        uint32_t a[4];
        FragmentW4A8(v[r].x, a[0], a[1]);
        FragmentW4A8(v[r].y, a[2], a[3]);
#pragma unroll
        for (int n = 0; n < kTokens8; ++n) Multiply(sum[r][n], a, b[i][n].x, b[i][n].y);
      }
    });
    ScaleInt(s, x_scales);
  }
  __device__ __forceinline__ void UnitW4(const uint8_t* scales, const uint8_t* w,
                                         const uint8_t* const (&next)[kTokens8],
                                         const Decoding<kPacking>& decoding, bool zeros) {
    const RingScales s(scales, lane, zeros);
    ForWords(w, next, [&](int i, const Words(&v)[2]) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          uint32_t a[4];
          FragmentW4(j == 0 ? v[r].x : v[r].y, a);
          Add(r, a, b[i], j);
        }
        AddX(b[i], j);
      }
    });
    Scale(s, decoding);
  }
  __device__ __forceinline__ void UnitFp4(const uint8_t* scales, const uint8_t* w,
                                          const uint8_t* const (&next)[kTokens8]) {
    PrepareMultipliers<kPacking>(scales, prepared, lane);
    __syncwarp();
    MultiplyPairs(
        w, next, prepared, acc,
        [](uint32_t word, uint32_t lower, uint32_t upper, uint32_t(&a)[4]) {
          FragmentF4(word, a);
#pragma unroll
          for (int q = 0; q < 4; ++q) a[q] = MulBf16(a[q], q % 2 == 0 ? lower : upper);
        },
        [](int) {});
  }
  __device__ __forceinline__ void UnitW4Group(const uint8_t* scales, const uint8_t* w,
                                              const uint8_t* const (&next)[kTokens8],
                                              const Decoding<kPacking>& decoding, bool zeros) {
    PrepareInt4(scales, prepared, lane, decoding, zeros);
    __syncwarp();
    MultiplyPairs(
        w, next, prepared + kPreparedOffsets, sum,
        [](uint32_t word, uint32_t lower, uint32_t upper, uint32_t(&a)[4]) {
          FragmentW4(word, a);
#pragma unroll
          for (int q = 0; q < 4; ++q) a[q] = AddBf16(a[q], q % 2 == 0 ? lower : upper);
        },
        [&](int i) { ScaleFloats(prepared + i * 128); });
  }
  __device__ __forceinline__ void UnitF8Block(const uint8_t* scales, const uint8_t* w,
                                              const uint8_t* const (&next)[kTokens8]) {
    ForBytes(
        w, next,
        [&](int i, int j, int r, uint32_t first, uint32_t second) {
          uint32_t a[4];
          FragmentF8(first, second, a);
#pragma unroll
          for (int q = 0; q < 4; ++q) a[q] = MulBf16(a[q], kF8UnitBf16);
          AddTo(sum[r], a, b[i], j);
        },
        [](int, int) {});
    ScaleFloats(scales);
  }
  __device__ __forceinline__ void UnitW8(const uint8_t* scales, const uint8_t* w,
                                         const uint8_t* const (&next)[kTokens8],
                                         const Decoding<kPacking>& decoding, bool zeros) {
    const RingScales s(scales, lane, zeros);
    ForBytes(
        w, next,
        [&](int i, int j, int r, uint32_t first, uint32_t second) {
          uint32_t low[4], high[4];
          FragmentW8(first, second, low, high);
          Add(r, low, b[i], j);
          Add(r, high, b[i], j);
        },
        [&](int i, int j) { AddX(b[i], j); });
    Scale(s, decoding);
  }
  __device__ __forceinline__ void UnitW3OrW2(const uint8_t* stage, const uint8_t* scales,
                                             const uint8_t* w,
                                             const uint8_t* const (&next)[kTokens8],
                                             const Decoding<kPacking>& decoding, bool zeros) {
    constexpr int kK64 = K64Bytes(kPacking);
    const int plane_at = 256 + (lane >> 2) * 16 + (lane & 1) * 8;
    Words v[2][2], plane[2][2];
    LoadWords(w, 0, v[0]);
    if (kPacking == Packing::kW3) LoadWords(stage + plane_at, 0, plane[0]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const RingScales s(scales + (kGroups == 2 ? i * kGroupScales : 0), lane, zeros);
      if (i == 0) {
        LoadWords(w, kK64, v[1]);
        if (kPacking == Packing::kW3) LoadWords(stage + plane_at, kK64, plane[1]);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const uint32_t word = j == 0 ? v[i][r].x : v[i][r].y;
          uint32_t a[2][4];
          if constexpr (kPacking == Packing::kW2) {
            FragmentW2<0>(word, a[0]);
            FragmentW2<1>(word, a[1]);
          } else {
            // The nibble of lane t's k32 block.
            const uint32_t bits = (j == 0 ? plane[i][r].x : plane[i][r].y) >> (lane & 2) * 2;
            FragmentW3<0>(word, bits, a[0]);
            FragmentW3<1>(word, bits, a[1]);
          }
          Add(r, a[0], b[2 * i], j);
          Add(r, a[1], b[2 * i + 1], j);
        }
        AddX(b[2 * i], j);
        AddX(b[2 * i + 1], j);
      }
      Load(next, 2 * i);
      Load(next, 2 * i + 1);
      if (kGroups == 2 || i == 1) Scale(s, decoding);
    }
  }

  /// Loads words of both row blocks.
  __device__ __forceinline__ static void LoadWords(const uint8_t* w, int at, Words (&v)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) v[r] = *reinterpret_cast<const Words*>(w + r * Shape::kBytes + at);
  }
  /// Calls `multiply` with each quarter of a unit of 4 bits, while the words of the next quarter
  /// are being loaded. Then loads the activations of the same quarter of the next unit.
  template <typename F>
  __device__ __forceinline__ void ForWords(const uint8_t* w, const uint8_t* const (&next)[kTokens8],
                                           const F& multiply) {
    Words v[2][2];
    LoadWords(w, 0, v[0]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < 3) LoadWords(w, (i + 1) * 256, v[(i + 1) & 1]);
      multiply(i, v[i & 1]);
      Load(next, i);
    }
  }
  /// As ForWords, for each half of a unit of 8 bits. Calls `multiply` with two words of row block
  /// r, for half j of activations i, and `after` after both row blocks.
  template <typename F, typename After>
  __device__ __forceinline__ void ForBytes(const uint8_t* w, const uint8_t* const (&next)[kTokens8],
                                           const F& multiply, const After& after) {
    Words v[2][2];
    LoadWords(w, 0, v[0]);
    LoadWords(w, 512, v[1]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const Words& of = v[i][r];
          multiply(i, j, r, j == 0 ? of.x : of.z, j == 0 ? of.y : of.w);
        }
        after(i, j);
      }
      Load(next, i);
    }
  }
  template <typename T>
  __device__ __forceinline__ static void Multiply(T (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                  uint32_t b1) {
    if constexpr (Shape::kInt) {
      MmaInt8(c, a, b0, b1);
    } else {
      MmaBf16(c, a, b0, b1);
    }
  }
  __device__ __forceinline__ void ClearSums() {
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        sum[0][n][c] = sum[1][n][c] = 0;
        x[n][c] = 0;
      }
    }
  }
  /// sum += A b over the 16 k of half `j` of b.
  __device__ __forceinline__ void Add(int r, const uint32_t (&a)[4], const Operands (&of)[kTokens8],
                                      int j) {
    AddTo(sum[r], a, of, j);
  }
  __device__ __forceinline__ static void AddTo(Sum (&to)[kTokens8][4], const uint32_t (&a)[4],
                                               const Operands (&of)[kTokens8], int j) {
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
      Multiply(to[n], a, j == 0 ? of[n].x : of[n].z, j == 0 ? of[n].y : of[n].w);
    }
  }
  __device__ __forceinline__ void AddX(const Operands (&of)[kTokens8], int j) {
    constexpr uint32_t kOnes = 0x3f803f80u;  // two bf16 of 1
    const uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
      Multiply(x[n], ones, j == 0 ? of[n].x : of[n].z, j == 0 ? of[n].y : of[n].w);
    }
  }
  /// acc += scale * (sum - offset * x) - zero * x.
  __device__ __forceinline__ void Scale(const RingScales& s, const Decoding<kPacking>& decoding) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {  // rows g, g + 8
        float scale = RingScales::Widen(s.scale[r], upper);
        const float zero = fmaf(scale, decoding.offset[upper], RingScales::Widen(s.zero[r], upper));
        if (kPacking == Packing::kW2 && upper == 1) scale *= 1 / kW2UpperRows;
#pragma unroll
        for (int n = 0; n < kTokens8; ++n) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            float& to = acc[r][n][2 * upper + c];
            to = fmaf(scale, sum[r][n][2 * upper + c], to);
            to = fmaf(-zero, x[n][c], to);
          }
        }
      }
    }
    ClearSums();
  }
  __device__ __forceinline__ void ScaleFloats(const uint8_t* at) {
    AddScaled<kTokens8>(at, lane, sum, acc);
    ClearSums();
  }
  __device__ __forceinline__ void ScaleInt(const RingScales& s,
                                           const float (&x_scales)[kTokens8][2]) {
    AddScaled<kTokens8>(s, x_scales, sum, acc);
    ClearSums();
  }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_FEW_RING_PRODUCT_CUH_
