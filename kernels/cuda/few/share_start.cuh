// The begin of an equal share of the work of a wave, for tiles whose costs are whole numbers.
#ifndef MOERT_KERNELS_CUDA_FEW_SHARE_START_CUH_
#define MOERT_KERNELS_CUDA_FEW_SHARE_START_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/device_types.h"

namespace moert::cuda {

/// One of `shares` equal shares of 2^32.
__device__ __forceinline__ uint32_t OneShare(int shares) {
  return ~0U / static_cast<uint32_t>(shares);
}

/// Where share `share` of `shares` begins. ends: [tiles] costs up to and including a tile;
/// items_of(tile): its items; one_share: OneShare(shares). It never decreases with `share`, since
/// every operation is monotonic.
template <typename ItemsOf>
__device__ __forceinline__ Position ShareStart(const int32_t* ends, int tiles, int share,
                                               int shares, uint32_t one_share, ItemsOf items_of) {
  if (tiles == 0 || share >= shares) return {tiles, 0};
  const auto all = static_cast<uint32_t>(ends[tiles - 1]);
  const auto target = static_cast<int32_t>(__umulhi(all, static_cast<uint32_t>(share) * one_share));
  int low = 0, high = tiles;  // the first tile that ends behind the target
  while (low < high) {
    const int middle = (low + high) / 2;
    if (ends[middle] > target) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  if (low == tiles) return {tiles, 0};
  const int32_t begin = low == 0 ? 0 : ends[low - 1];
  const int items = items_of(low);
  const float part =
      __fdividef(static_cast<float>(target - begin), static_cast<float>(ends[low] - begin));
  // Shares often divide a tile evenly; then a rounding error of the quotient must not add an item.
  const auto item = static_cast<int>(ceilf(part * items - 1.0f / 64));
  return item >= items ? Position{low + 1, 0} : Position{low, item};
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_FEW_SHARE_START_CUH_
