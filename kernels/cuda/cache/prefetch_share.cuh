// Weights of a share on their way to L2 before it begins.
#ifndef MOERT_KERNELS_CUDA_CACHE_PREFETCH_SHARE_CUH_
#define MOERT_KERNELS_CUDA_CACHE_PREFETCH_SHARE_CUH_

#include "kernels/cuda/few/group_share.cuh"

namespace moert::cuda {

/// So much of a share that those of all CTAs leave most of L2 to others.
constexpr int kPrefetchBytes = 48 << 10;

__device__ __forceinline__ void PrefetchLine(const uint8_t* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/// By a warp: `bytes` from `at` on. The whole lines they are in.
__device__ __forceinline__ void PrefetchBytes(const uint8_t* at, int bytes, int lane) {
  constexpr int kLine = 128;
  const int before = static_cast<int>(reinterpret_cast<uintptr_t>(at) % kLine);
  for (int i = lane * kLine; i < before + bytes; i += 32 * kLine) PrefetchLine(at - before + i);
}

/// By a warp: what a share of `down` reads, up to kPrefetchBytes of weights.
template <typename Work>
__device__ __forceinline__ void PrefetchShare(const Work& work, const Position& begin,
                                              const Position& end, int lane) {
  int left = kPrefetchBytes;
  for (TileWalk walk{begin, end, 0}; !walk.done() && left > 0; walk.at = {walk.at.tile + 1, 0}) {
    const ResolvedTile tile = work.TileAt(walk.at.tile, 1, lane);
    const TileMatrix& m = tile.m;
    const int last = walk.at.tile == end.tile ? end.item : m.items;
    const int first_block = walk.at.item * 2, blocks = min(last * 2, m.row_blocks) - first_block;
    if (blocks <= 0) continue;
    const int block_bytes = m.k64s * K64Bytes(m.packing);
    PrefetchBytes(m.weights + static_cast<int64_t>(first_block) * block_bytes,
                  min(blocks * block_bytes, left), lane);
    left -= blocks * block_bytes;
    if (m.group_k16s == 0) continue;
    const int scale_bytes = BlockScaleBytes(m.packing);
    const int groups = (m.k64s * 4 + m.group_k16s - 1) / m.group_k16s;
    for (int g = lane; g < groups; g += 32) {
      const uint8_t* const at =
          m.scales + (static_cast<int64_t>(g) * m.row_blocks + first_block) * scale_bytes;
      PrefetchLine(at);
      PrefetchLine(at + blocks * scale_bytes - 1);
      if (m.zero_distance != 0) PrefetchLine(at + m.zero_distance);
    }
  }
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_PREFETCH_SHARE_CUH_
