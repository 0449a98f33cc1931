// The tiles of both waves of a call of few tokens, whose experts have one tile each, by one CTA of
// a thread an expert and one more, up to kTileThreads.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_FEW_TILES_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_FEW_TILES_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/primitives/expert_tiles.cuh"
#include "kernels/cuda/primitives/share_start.cuh"

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

/// Whether every expert of a call has one tile, of the kernels for few tokens.
__device__ __forceinline__ bool OneTileEach(const MakeTilesArgs& args) {
  return args.tokens <= kTileTokens && args.prompt_packings == 0;
}

/// expert: what the thread's expert multiplies, no record: nothing; wave: in which. Fills the table
/// of `args` with what is ready, and `late`. By all threads.
__device__ __forceinline__ void MakeFewTiles(const MakeTilesArgs& args, const TileTable& late,
                                             const ExpertTokens& expert, int wave,
                                             FewTilesScratch& scratch) {
  const TileTable& early = args.table;
  const bool any = expert.handle.record != nullptr && expert.count > 0;
  const WavePlace place = PlaceInWave(any ? wave : -1, scratch);
  if (any) {
    const DeviceFormat& f = args.formats[expert.handle.format];
    Tile tile{};
    tile.matrix[0] = ResolveMatrix(expert.handle.record, f.gate, &f.up);
    tile.matrix[1] = ResolveMatrix(expert.handle.record, f.down, nullptr);
    tile.slots = expert.slots;
    tile.count = expert.count;
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      scratch.ends[wave][p][place.at] = SmallTileCost(tile.matrix[p], expert.count);
      scratch.items[wave][p][place.at] = tile.matrix[p].items;
    }
    (wave == 0 ? early.tiles : late.tiles)[place.at] = tile;
    (wave == 0 ? early.ready : late.ready)[place.at] = 0;
  }
  const int i = threadIdx.x;
  if (i < 2 * kWaves) (i < 2 ? early.ticket : late.ticket)[i & 1] = 0;
  __syncthreads();
  const int warp = i / 32;
  if (warp < 2 * kWaves) SumUp(scratch.ends[warp / 2][warp % 2], place.Tiles(warp / 2));
  __syncthreads();
  const double one_share = 1.0 / args.shares;
  for (int at = i; at < 2 * kWaves * (args.shares + 1); at += static_cast<int>(blockDim.x)) {
    const int w = at & 1, p = at >> 1 & 1, share = at >> 2;
    const int32_t* const items = scratch.items[w][p];
    Position* const starts = w == 0 ? (p == 0 ? early.starts[0] : early.starts[1])
                                    : (p == 0 ? late.starts[0] : late.starts[1]);
    starts[share] = ShareStart(scratch.ends[w][p], place.Tiles(w), share, args.shares, one_share,
                               [&](int tile) { return items[tile]; });
  }
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_FEW_TILES_CUH_
