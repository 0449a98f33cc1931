// The tiles of both waves of a call of few tokens, whose experts have one tile each, by one CTA of
// a thread an expert and one more, up to kTileThreads.
#ifndef MOERT_KERNELS_CUDA_FEW_FEW_TILES_CUH_
#define MOERT_KERNELS_CUDA_FEW_FEW_TILES_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/few/share_start.cuh"
#include "kernels/cuda/route/expert_tiles.cuh"

namespace moert::cuda {

constexpr int kWaves = 2;  // what is ready, what comes late

/// Shared memory of MakeFewTiles.
struct FewTilesScratch {
  uint32_t votes[kTileThreads / 32];
  // [wave][product][tile]
  int32_t ends[kWaves][2][kFewExperts + 1];  // costs, then sums up to and with a tile
  int32_t items[kWaves][2][kFewExperts + 1];
};

/// Where the thread's expert comes among those of its wave, and how many each wave has.
struct WavePlace {
  int at, ready, late;

  // A choice, not an array: that would lie in memory.
  __device__ __forceinline__ int Tiles(int wave) const { return wave == 0 ? ready : late; }
};
/// wave: the thread's expert's, -1: none. By all threads.
__device__ __forceinline__ WavePlace PlaceInWave(int wave, FewTilesScratch& scratch) {
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t ready = __ballot_sync(~0U, wave == 0), late = __ballot_sync(~0U, wave == 1);
  if (lane == 0) scratch.votes[warp] = __popc(ready) | __popc(late) << 16;
  __syncthreads();
  const uint32_t votes = lane < warps ? scratch.votes[lane] : 0;
  const uint32_t all = __reduce_add_sync(~0U, votes);
  const uint32_t before = __reduce_add_sync(~0U, lane < warp ? votes : 0);
  const uint32_t lanes_before = (1U << lane) - 1;
  WavePlace place;
  place.ready = static_cast<int>(all & 0xffff);
  place.late = static_cast<int>(all >> 16);
  place.at = wave == 1 ? static_cast<int>(before >> 16) + __popc(late & lanes_before)
                       : static_cast<int>(before & 0xffff) + __popc(ready & lanes_before);
  return place;
}

/// By a warp: costs become sums up to and with each.
__device__ __forceinline__ void SumUp(int32_t* costs, int count) {
  const int lane = threadIdx.x % 32;
  int32_t before = 0;
  for (int first = 0; first < count; first += 32) {
    const int i = first + lane;
    const int32_t sum = before + WarpSums(Several<int32_t, 1>{i < count ? costs[i] : 0}).v[0];
    if (i < count) costs[i] = sum;
    before = __shfl_sync(~0U, sum, 31);
  }
}

/// Where the shares of a wave begin, in both products. By all threads.
__device__ __forceinline__ void StartShares(const TileTable& table, int tiles, int shares,
                                            const int32_t (&ends)[2][kFewExperts + 1],
                                            const int32_t (&items)[2][kFewExperts + 1]) {
  const uint32_t one_share = OneShare(shares);
  for (int at = threadIdx.x; at < 2 * shares; at += static_cast<int>(blockDim.x)) {
    const int p = at & 1, share = at >> 1;
    (p == 0 ? table.starts[0] : table.starts[1])[share] =
        ShareStart(ends[p], tiles, share, shares, one_share,
                   [&](int tile) { return p == 0 ? items[0][tile] : items[1][tile]; });
  }
  if (threadIdx.x < 2) {
    (threadIdx.x == 0 ? table.starts[0] : table.starts[1])[shares] = {tiles, 0};
  }
}

/// Whether every expert of a call has one tile, of the kernels for few tokens.
__device__ __forceinline__ bool OneTileEach(const MakeTilesArgs& args) {
  return args.tokens <= kTileTokens && args.prompt_packings == 0;
}

/// expert: what the thread's expert multiplies, no record: nothing; wave: in which. Fills the table
/// of `args` with what is ready, and `late`. beside(): done while the threads of experts make their
/// tiles. By all threads.
template <typename Beside>
__device__ __forceinline__ void MakeFewTiles(const MakeTilesArgs& args, const TileTable& late,
                                             const ExpertTokens& expert, int wave,
                                             FewTilesScratch& scratch, const Beside& beside) {
  const TileTable& early = args.table;
  const bool any = expert.handle.record != nullptr && expert.count > 0;
  const WavePlace place = PlaceInWave(any ? wave : -1, scratch);
  if (any) {
    const DeviceFormat& f = args.formats[expert.handle.format];
    Tile& tile = (wave == 0 ? early.tiles : late.tiles)[place.at];
#pragma unroll 1  // the code of a launch is read once, and takes longer than what it does
    for (int p = 0; p < 2; ++p) {
      const DeviceMatrix& m = p == 0 ? f.gate : f.down;
      const TileMatrix matrix = ResolveMatrix(expert.handle.record, m, p == 0 ? &f.up : nullptr);
      scratch.ends[wave][p][place.at] = SmallTileCost(matrix, expert.count);
      scratch.items[wave][p][place.at] = matrix.items;
      tile.matrix[p] = matrix;
    }
    tile.slots = expert.slots;
    tile.count = expert.count;
    (wave == 0 ? early.ready : late.ready)[place.at] = 0;
  }
  beside();
  const int i = threadIdx.x;
  if (i < 2 * kWaves) (i < 2 ? early.ticket : late.ticket)[i & 1] = 0;
  __syncthreads();
  const int warp = i / 32;
  if (warp < 2 * kWaves) SumUp(scratch.ends[warp / 2][warp % 2], place.Tiles(warp / 2));
  __syncthreads();
  StartShares(early, place.ready, args.shares, scratch.ends[0], scratch.items[0]);
  StartShares(late, place.late, args.shares, scratch.ends[1], scratch.items[1]);
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_FEW_FEW_TILES_CUH_
