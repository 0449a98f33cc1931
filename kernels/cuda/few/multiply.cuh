// A warp's products of one unit of 16-bit, fp8 or int8 weights: two row blocks of weights, already
// in registers, with the activations of 8 or 16 tokens, which are read through L1. Each register of
// weights is refilled for the next unit as soon as it was read. There is one scale per channel; an
// item's scales are copied to shared memory while the item before is multiplied.
#ifndef MOERT_KERNELS_CUDA_FEW_MULTIPLY_CUH_
#define MOERT_KERNELS_CUDA_FEW_MULTIPLY_CUH_

#include <cstdint>

#include "kernels/cuda/few/tile_walk.cuh"
#include "kernels/cuda/primitives/dequant.cuh"
#include "kernels/cuda/primitives/mma.cuh"
#include "kernels/cuda/primitives/packing.cuh"

namespace moert::cuda {

/// Loads of 16 bytes that a lane needs for a unit, per row block.
constexpr int kUnitLoads = 4;

/// The position at which a warp reads weights next: unit after unit of its slice of K, item after
/// item of its share of a tile. It is one unit ahead of the products, so that a unit's loads are
/// under way while the unit before it is multiplied.
template <Packing kPacking>
struct WeightCursor {
  using Shape = UnitShape<kPacking>;

  // State of the run of items.
  const TileMatrix& m;
  const Slice slice;
  const int product;
  const int lane;
  const uint64_t policy = EvictFirst();

  // State of the unit. Pointers are this lane's.
  const uint8_t* weights[2];
  const uint8_t* scales;  // the lane's part of the item's: half, row block by the lane's bits
  int left = 0;           // pieces of 64 k from here on; 0: no more items

  __device__ __forceinline__ WeightCursor(const TileMatrix& matrix, Slice s, int /*units*/, int p,
                                          int l, const ItemRange& /*range*/,
                                          const uint8_t* /*shared*/)
      : m(matrix), slice(s), product(p), lane(l) {}

  /// Moves to the first unit of an item. A last odd block of `down` is paired with itself.
  __device__ __forceinline__ void Open(int item) {
    constexpr int kK64 = K64Bytes(kPacking);
    const int block = item << product;
    const bool lone = product == 1 && block + 1 >= m.row_blocks;
    weights[0] = m.weights + (static_cast<int64_t>(block) * m.k64s + slice.begin) * kK64 +
                 LaneOffset<kPacking>(lane);
    weights[1] = weights[0] + (lone ? 0 : m.second_weights);
    left = slice.end - slice.begin;
    if constexpr (kPacking != Packing::kBf16) {
      scales = m.scales + static_cast<int64_t>(block) * 32 + (lane & 1) * 16;
      if ((lane & 2) && !lone) scales += m.second_scales;
    }
  }

  /// Opens the item, if there is one; else nothing is left.
  __device__ __forceinline__ void OpenOrStop(int item, int end) {
    if (item < end) {
      Open(item);
    } else {
      left = 0;
    }
  }

  /// Moves to the next unit of the item.
  __device__ __forceinline__ void Advance() {
    weights[0] += Shape::kBytes;
    weights[1] += Shape::kBytes;
    left -= Shape::kK64s;
  }

  /// Load `i` of row block `r`, if the unit has it.
  __device__ __forceinline__ void Load(int r, int i, uint32_t (&v)[4]) const {
    const bool second = Shape::kK64s == 2 && i >= kUnitLoads / 2;
    LoadWeights(v, weights[r] + i * 512, policy, left > (second ? 1 : 0));
  }
  /// Begins to copy the item's scales, one per channel, to kScaleBytes at `to`. Commits a group of
  /// copies in any case.
  __device__ __forceinline__ void CopyScales(uint32_t to) const {
    if constexpr (kPacking != Packing::kBf16) {
      if (lane < 4 && left > 0) CopyAsync16(to + lane * 16, scales, true);
      CopyAsyncCommit();
    }
  }
};

/// This lane's parts of an item: rows g and g + 8 of both row blocks, columns 2t and 2t + 1 of
/// every 8 tokens.
template <Packing kPacking, int kTokens8>
struct ItemProduct {
  using Shape = UnitShape<kPacking>;
  using Cursor = WeightCursor<kPacking>;

  uint32_t weights[2][kUnitLoads][4] = {};
  uint32_t scales;       // shared memory: of the item, kScaleBytes
  uint32_t next_scales;  // of the next item
  float acc[2][kTokens8][4];
  int32_t sum[2][kTokens8][4];  // of w8a8

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        acc[0][n][c] = acc[1][n][c] = 0;
        sum[0][n][c] = sum[1][n][c] = 0;
      }
    }
  }

  /// scales: shared memory of this warp, 2 * kScaleBytes.
  __device__ __forceinline__ ItemProduct(int /*lane*/, const uint8_t* shared)
      : scales(SharedAddress(shared)), next_scales(SharedAddress(shared) + kScaleBytes) {}

  /// Loads the unit at the cursor, the first of a run.
  __device__ __forceinline__ void Fill(const Cursor& cursor) {
#pragma unroll
    for (int i = 0; i < kUnitLoads; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) cursor.Load(r, i, weights[r][i]);
    }
    cursor.CopyScales(scales);
  }

  /// Multiplies the unit in the registers by the activations at `rows`, and refills the registers
  /// with the unit at the cursor.
  __device__ __forceinline__ void Unit(const uint8_t* const (&rows)[kTokens8],
                                       const Cursor& cursor) {
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
    } else {
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
    }
  }

  /// Called when the cursor has moved to another item: begins to copy its scales. They are under
  /// way until EndItem() of the item that is multiplied now has returned.
  __device__ __forceinline__ void OpenItem(const Cursor& cursor) { cursor.CopyScales(next_scales); }

  /// After the last unit of an item. x_scales: of the columns.
  __device__ __forceinline__ void EndItem(const Cursor& cursor,
                                          const float (&x_scales)[kTokens8][2]) {
    if constexpr (kPacking != Packing::kBf16) {
      CopyAsyncWait<1>();  // for the item's scales; those of the next may be under way
      __syncwarp();
      const ChannelScales s(scales, cursor.lane);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float scale = s.scale[r][c / 2];
#pragma unroll
          for (int n = 0; n < kTokens8; ++n) {
            if constexpr (kPacking == Packing::kW8A8) {
              acc[r][n][c] = static_cast<float>(sum[r][n][c]) * (scale * x_scales[n][c & 1]);
            } else {
              acc[r][n][c] *= scale * (kF8Unit / kF8Activations) * x_scales[n][c & 1];
            }
          }
        }
      }
      __syncwarp();  // all lanes have read: the copies for the item after the next may begin
      const uint32_t read = scales;
      scales = next_scales;
      next_scales = read;
    }
  }

 private:
  /// Loads the lane's activations, `channel` channels behind the first.
  template <typename T>
  __device__ __forceinline__ static void Activations(const uint8_t* const (&rows)[kTokens8],
                                                     int channel, T (&b)[kTokens8]) {
#pragma unroll
    for (int n = 0; n < kTokens8; ++n) {
      b[n] = *reinterpret_cast<const T*>(rows[n] + channel * Shape::kElement);
    }
  }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_FEW_MULTIPLY_CUH_
