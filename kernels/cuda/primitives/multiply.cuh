// A warp's products of one unit: two row blocks of weights, already in registers, with the
// activations of 8 or 16 tokens, which come through L1. Each weight's register is filled for the
// next unit as soon as it was read.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_MULTIPLY_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_MULTIPLY_CUH_

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/primitives/dequant.cuh"
#include "kernels/cuda/primitives/mma.cuh"
#include "kernels/cuda/primitives/weight_cursor.cuh"

namespace moert::cuda {

/// This lane's parts of an item: rows g and g + 8 of both row blocks, columns 2t and 2t + 1 of
/// every 8 tokens.
template <Packing kPacking, int kTokens8>
struct ItemProduct {
  using Shape = UnitShape<kPacking>;
  using Cursor = WeightCursor<kPacking>;
  using Sum = std::conditional_t<Shape::kInt, int32_t, float>;

  uint32_t weights[2][Shape::kLoads][Shape::kWords] = {};
  uint32_t scales;       // shared memory: of the unit, kScaleBytes
  uint32_t next_scales;  // of the one behind it
  float acc[2][kTokens8][4];
  Sum sum[2][kTokens8][4];  // since the last scaling
  float x[kTokens8][4];     // sums of the activations of `sum`, alike in every row

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) acc[0][n][c] = acc[1][n][c] = 0;
    }
    ClearSums();
  }

  /// scales: shared memory of this warp, 2 * kScaleBytes.
  __device__ __forceinline__ ItemProduct(int /*lane*/, const uint8_t* shared)
      : scales(SharedAddress(shared)), next_scales(SharedAddress(shared) + kScaleBytes) {}

  /// Loads the unit at the cursor.
  __device__ __forceinline__ void Fill(const Cursor& cursor) {
#pragma unroll
    for (int i = 0; i < Shape::kLoads; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) cursor.Load(r, i, weights[r][i]);
    }
    cursor.CopyScales(scales);
  }

  /// Multiplies the unit in the registers by the activations at `rows` and fills them with the
  /// cursor's. x_scales: of W4A8, the columns' scales of this unit.
  __device__ __forceinline__ void Unit(const uint8_t* const (&rows)[kTokens8], const Cursor& cursor,
                                       const Decoding<kPacking>& decoding,
                                       const float (&x_scales)[kTokens8][2]) {
    cursor.CopyScales(next_scales);
    if constexpr (kPacking == Packing::kBf16) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint2 b[kTokens8];
        Activations(rows, i * 16, b);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
          for (int n = 0; n < kTokens8; ++n) MmaBf16(acc[r][n], weights[r][i], b[n].x, b[n].y);
          cursor.Load(r, i, weights[r][i]);
        }
      }
    } else if constexpr (kPacking == Packing::kW8A8) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint2 b[kTokens8];
        Activations(rows, i * 32, b);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          uint32_t a[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) a[j] = weights[r][i][j] ^ 0x80808080u;  // u - 128
#pragma unroll
          for (int n = 0; n < kTokens8; ++n) MmaInt8(sum[r][n], a, b[n].x, b[n].y);
          cursor.Load(r, i, weights[r][i]);
        }
      }
    } else if constexpr (kPacking == Packing::kF8) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint4 b[kTokens8];
        Activations(rows, i * 32, b);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          uint32_t a[2][4];
          const auto& w = weights[r][i];
          FragmentF8(w[0], w[1], a[0]);
          FragmentF8(w[2], w[3], a[1]);
#pragma unroll
          for (int n = 0; n < kTokens8; ++n) {
            MmaBf16(acc[r][n], a[0], b[n].x, b[n].y);
            MmaBf16(acc[r][n], a[1], b[n].z, b[n].w);
          }
          cursor.Load(r, i, weights[r][i]);
        }
      }
    } else {  // w8
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint4 b[kTokens8];
        Activations(rows, i * 32, b);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const auto& w = weights[r][i];
            uint32_t low[4], high[4];
            FragmentW8(w[2 * j], w[2 * j + 1], low, high);
            Add(r, low, b, j);
            Add(r, high, b, j);
            if (j == 1) cursor.Load(r, i, weights[r][i]);
          }
          AddX(b, j);
        }
      }
      AwaitScales();
      Scale({scales, cursor.lane, cursor.zeros}, decoding);
      ExchangeScales();
    }
  }

  /// After the last unit of an item: scales what has one scale a channel.
  __device__ __forceinline__ void EndItem(const Cursor& cursor,
                                          const float (&x_scales)[kTokens8][2]) {
    if constexpr (kPacking == Packing::kW8A8) {
      AwaitScales();
      ScaleInt(cursor, x_scales, 1);
      ExchangeScales();
    } else if constexpr (kPacking == Packing::kF8) {
      constexpr float kUnit = kF8Unit / kF8Activations;
      AwaitScales();
      const GroupScales s(scales, cursor.lane, false);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float scale = s.scale[r][c / 2] * kUnit;
#pragma unroll
          for (int n = 0; n < kTokens8; ++n) acc[r][n][c] *= scale * x_scales[n][c & 1];
        }
      }
      ExchangeScales();
    }
  }

 private:
  /// The lane's activations, `channel` channels behind the first.
  template <typename T>
  __device__ __forceinline__ static void Activations(const uint8_t* const (&rows)[kTokens8],
                                                     int channel, T (&b)[kTokens8]) {
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
      b[n] = *reinterpret_cast<const T*>(rows[n] + channel * Shape::kElement);
    }
  }
  /// Until the unit's scales are there for all lanes; those of the next may be under way.
  __device__ __forceinline__ static void AwaitScales() {
    CopyAsyncWait<1>();
    __syncwarp();
  }
  /// On to the next unit; the copies into the unit's own scales begin after all lanes read them.
  __device__ __forceinline__ void ExchangeScales() {
    __syncwarp();
    const uint32_t read = scales;
    scales = next_scales;
    next_scales = read;
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
  __device__ __forceinline__ void Add(int r, const uint32_t (&a)[4], const uint4 (&b)[kTokens8],
                                      int j) {
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
      MmaBf16(sum[r][n], a, j == 0 ? b[n].x : b[n].z, j == 0 ? b[n].y : b[n].w);
    }
  }
  __device__ __forceinline__ void AddX(const uint4 (&b)[kTokens8], int j) {
    constexpr uint32_t kOnes = 0x3f803f80u;  // two bf16 of 1
    const uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
      MmaBf16(x[n], ones, j == 0 ? b[n].x : b[n].z, j == 0 ? b[n].y : b[n].w);
    }
  }
  /// acc += scale * (sum - offset * x) - zero * x.
  __device__ __forceinline__ void Scale(const GroupScales& s, const Decoding<kPacking>& decoding) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {  // rows g, g + 8
        float scale = s.scale[r][upper];
        const float zero = fmaf(scale, decoding.offset[upper], s.zero[r][upper]);
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
  /// acc += unit * scale * x_scale * sum.
  __device__ __forceinline__ void ScaleInt(const Cursor& cursor,
                                           const float (&x_scales)[kTokens8][2], float unit) {
    const GroupScales s(scales, cursor.lane, false);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float scale = s.scale[r][c / 2] * unit;
#pragma unroll
        for (int n = 0; n < kTokens8; ++n) {
          acc[r][n][c] =
              fmaf(static_cast<float>(sum[r][n][c]), scale * x_scales[n][c & 1], acc[r][n][c]);
        }
      }
    }
    ClearSums();
  }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_MULTIPLY_CUH_
