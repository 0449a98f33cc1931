// A warp's products of one chunk: two row blocks of weights from a stage of its ring with the
// activations of 8 or 16 tokens, which come through L1.
//
// The order of k inside a product is free as long as weights and activations agree, so each
// packing takes the order in which a lane's weights lie together (16 bytes; 8 of w2 and w3), and
// reads the units of 4 activations (activation.cuh) that belong to it:
//   w4       lane t holds the k16 block t of 64 k, product i takes its unit i
//   w2, w3   lane t: k32 block t / 2 of 64 k, units 2 (t % 2) + i, halves h: four products
//   w8       lane t: k16 block t / 2 of 32 k, units 2 (t % 2) + i
//   bf16     as stored: unit t of each k16 block
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_MULTIPLY_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_MULTIPLY_CUH_

#include <cstdint>

#include "kernels/cuda/primitives/dequant.cuh"
#include "kernels/cuda/primitives/mma.cuh"
#include "kernels/cuda/primitives/weight_stream.cuh"

namespace moert::cuda {

/// K of one Operands.
__host__ __device__ constexpr int OperandK(Packing p) { return p == Packing::kBf16 ? 32 : 64; }

/// Where a lane's activations of a packed row begin, in elements, and how far the second 16 bytes
/// (bf16: 8) lie behind the first.
template <Packing kPacking>
__device__ __forceinline__ int LaneUnits(int t) {
  if (kPacking == Packing::kBf16) return t * 4;
  if (kPacking == Packing::kW4) return t * 16;
  return (t >> 1) * (kPacking == Packing::kW8 ? 16 : 32) + (t & 1) * 8;
}
template <Packing kPacking>
constexpr int kSecondUnits = kPacking == Packing::kW4   ? 8
                             : kPacking == Packing::kW8 ? 32
                                                        : 16;

/// A lane's activations of 64 k (bf16: 32) and 8 tokens a column.
template <Packing kPacking, int kTokens8>
struct Operands {
  static constexpr int kWords = kPacking == Packing::kBf16 ? 2 : 4;
  uint32_t v[kTokens8][2][kWords];

  /// rows: this lane's first units. Zeros unless `there`.
  __device__ __forceinline__ void Load(const uint16_t* const (&rows)[kTokens8], int k, bool there) {
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint16_t* at = rows[n] + k + i * kSecondUnits<kPacking>;
        if constexpr (kWords == 2) {
          uint2 u = make_uint2(0, 0);
          if (there) u = *reinterpret_cast<const uint2*>(at);
          v[n][i][0] = u.x;
          v[n][i][1] = u.y;
        } else {
          uint4 u = make_uint4(0, 0, 0, 0);
          if (there) u = *reinterpret_cast<const uint4*>(at);
          v[n][i][0] = u.x;
          v[n][i][1] = u.y;
          v[n][i][2] = u.z;
          v[n][i][3] = u.w;
        }
      }
    }
  }
};

// Reads of a stage, by shared address. Ordered by the copies and barriers around them.
template <typename T>
__device__ __forceinline__ T Shared(uint32_t at) {
  T v;
  if constexpr (sizeof(T) == 16) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
  } else {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  }
  return v;
}
__device__ __forceinline__ float SharedBf16(uint32_t at) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
  return __uint_as_float(static_cast<uint32_t>(v) << 16);
}

/// What turns sums of fragment values into sums of weights, of rows g and g + 8.
template <Packing kPacking>
struct Decoding {
  float offset[2];  // of the values, in units of the scale
  bool asymmetric;

  __device__ __forceinline__ Decoding(int zero_point, bool asym) : asymmetric(asym) {
    const auto zero = static_cast<float>(zero_point);
    offset[0] = zero + (kPacking == Packing::kW8 ? 2 * kMagicOffset : kMagicOffset);
    offset[1] = kPacking == Packing::kW2 ? zero + kMagicOffset / kW2UpperRows : offset[0];
  }
};

/// The products of one scale group and the sums of its activations.
template <Packing kPacking, int kTokens8>
struct GroupSums {
  float sum[2][kTokens8][4];
  float x[kTokens8][4];  // every row holds the sum of its column

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) sum[0][n][c] = sum[1][n][c] = x[n][c] = 0;
    }
  }

  /// sum += A x for both row blocks over 16 k.
  __device__ __forceinline__ void Add(const uint32_t (&a)[2][4], int n, uint32_t b0, uint32_t b1) {
    MmaBf16(sum[0][n], a[0], b0, b1);
    MmaBf16(sum[1][n], a[1], b0, b1);
  }
  __device__ __forceinline__ void AddX(int n, uint32_t b0, uint32_t b1) {
    constexpr uint32_t kOnes = 0x3f803f80u;  // two bf16 of 1
    const uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
    MmaBf16(x[n], ones, b0, b1);
  }

  /// acc += scale * (sum - offset * x) - zero * x. scales: this group's part of a stage.
  __device__ __forceinline__ void AddTo(float (&acc)[2][kTokens8][4], uint32_t scales, int lane,
                                        const Decoding<kPacking>& decoding) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {  // rows g, g + 8
        const uint32_t at = scales + r * 32 + ((lane >> 2) + 8 * upper) * 2;
        float scale = SharedBf16(at);
        float zero = scale * decoding.offset[upper];
        if (decoding.asymmetric) zero += SharedBf16(at + 64);
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
  }
};

/// Adds piece `kPiece` (64 k) of a stage to the sums.
template <Packing kPacking, int kTokens8, int kPiece>
__device__ __forceinline__ void MultiplyK64(uint32_t stage, int lane,
                                            const Operands<kPacking, kTokens8>& x,
                                            GroupSums<kPacking, kTokens8>& sums) {
  const int g = lane >> 2, t = lane & 3;
  if constexpr (kPacking == Packing::kW4) {
    uint4 w[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      w[r] =
          Shared<uint4>(stage + r * kBlockBytes + kPiece * 512 + t * 128 + ((g + 2 * t) & 7) * 16);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t a[2][4];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        FragmentW4(i == 0 ? w[r].x : i == 1 ? w[r].y : i == 2 ? w[r].z : w[r].w, a[r]);
      }
#pragma unroll
      for (int n = 0; n < kTokens8; ++n) {
        const uint32_t b0 = x.v[n][i / 2][2 * (i % 2)], b1 = x.v[n][i / 2][2 * (i % 2) + 1];
        sums.Add(a, n, b0, b1);
        sums.AddX(n, b0, b1);
      }
    }
  } else if constexpr (kPacking == Packing::kW8) {
    const int at = (t >> 1) * 256 + ((2 * g + (t & 1)) ^ (t >> 1) * 4) * 16;
#pragma unroll
    for (int k32 = 0; k32 < 2; ++k32) {
      uint4 w[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        w[r] = Shared<uint4>(stage + r * kBlockBytes + k32 * 512 + at);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t low[2][4], high[2][4];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          FragmentW8(i == 0 ? w[r].x : w[r].z, i == 0 ? w[r].y : w[r].w, low[r], high[r]);
        }
#pragma unroll
        for (int n = 0; n < kTokens8; ++n) {
          const uint32_t b0 = x.v[n][k32][2 * i], b1 = x.v[n][k32][2 * i + 1];
          sums.Add(low, n, b0, b1);
          sums.Add(high, n, b0, b1);
          sums.AddX(n, b0, b1);
        }
      }
    }
  } else {
    // w3 lies as stored, and is read with conflicts.
    const int unit = kPacking == Packing::kW2 ? g ^ (t >> 1) * 4 : g;
    const int at = kPiece * K64Bytes(kPacking) + (t >> 1) * 128 + unit * 16 + (t & 1) * 8;
    uint2 w[2];
    uint2 bits[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      w[r] = Shared<uint2>(stage + r * kBlockBytes + at);
      if constexpr (kPacking == Packing::kW3) {
        const uint32_t plane = stage + r * kBlockBytes + kPiece * 384 + 256;
        bits[r] = Shared<uint2>(plane + g * 16 + (t & 1) * 8);
        bits[r].x >>= 4 * (t >> 1);
        bits[r].y >>= 4 * (t >> 1);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t a[2][4];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const uint32_t word = i == 0 ? w[r].x : w[r].y;
          if constexpr (kPacking == Packing::kW2) {
            half == 0 ? FragmentW2<0>(word, a[r]) : FragmentW2<1>(word, a[r]);
          } else {
            const uint32_t plane = i == 0 ? bits[r].x : bits[r].y;
            half == 0 ? FragmentW3<0>(word, plane, a[r]) : FragmentW3<1>(word, plane, a[r]);
          }
        }
#pragma unroll
        for (int n = 0; n < kTokens8; ++n) {
          const uint32_t b0 = x.v[n][half][2 * i], b1 = x.v[n][half][2 * i + 1];
          sums.Add(a, n, b0, b1);
          sums.AddX(n, b0, b1);
        }
      }
    }
  }
}

/// acc += A x over one bf16 chunk, 32 k.
template <int kTokens8>
__device__ __forceinline__ void MultiplyBf16(uint32_t stage, int lane,
                                             const Operands<Packing::kBf16, kTokens8>& x,
                                             float (&acc)[2][kTokens8][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint4 w = Shared<uint4>(stage + r * kBlockBytes + half * 512 + lane * 16);
      const uint32_t a[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int n = 0; n < kTokens8; ++n) MmaBf16(acc[r][n], a, x.v[n][half][0], x.v[n][half][1]);
    }
  }
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_MULTIPLY_CUH_
