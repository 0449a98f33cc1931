// Where a warp reads weights next: unit after unit of its slice of K, item after item of its share
// of a tile. It is a unit ahead of the products, so that a unit's loads are under way while the
// unit before it is multiplied.
#ifndef MOERT_KERNELS_CUDA_FEW_WEIGHT_CURSOR_CUH_
#define MOERT_KERNELS_CUDA_FEW_WEIGHT_CURSOR_CUH_

#include <cstdint>

#include "kernels/cuda/few/tile_walk.cuh"
#include "kernels/cuda/primitives/packing.cuh"

namespace moert::cuda {

/// Loads of a unit by a lane, of each row block, 16 bytes each.
constexpr int kUnitLoads = 4;

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
  const uint8_t* scales;  // what the lane copies of the item's: half, row block by its bits
  int left = 0;           // pieces of 64 k from here on; 0: no more items

  __device__ __forceinline__ WeightCursor(const TileMatrix& matrix, Slice s, int /*units*/, int p,
                                          int l, const ItemRange& /*range*/,
                                          const uint8_t* /*shared*/)
      : m(matrix), slice(s), product(p), lane(l) {}

  /// At the first unit of an item. A last odd block of `down` is paired with itself.
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

  /// Open where there is such an item; else nothing is left.
  __device__ __forceinline__ void OpenOrStop(int item, int end) {
    if (item < end) {
      Open(item);
    } else {
      left = 0;
    }
  }

  /// At the next unit of the item.
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
  /// Begins to copy the item's scales, one a channel, to kScaleBytes at `to`, and closes a group
  /// either way.
  __device__ __forceinline__ void CopyScales(uint32_t to) const {
    if constexpr (kPacking != Packing::kBf16) {
      if (lane < 4 && left > 0) CopyAsync16(to + lane * 16, scales, true);
      CopyAsyncCommit();
    }
  }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_FEW_WEIGHT_CURSOR_CUH_
