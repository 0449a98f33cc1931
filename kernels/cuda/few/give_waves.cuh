// The results of a call's decision (serve_call.cuh): both waves of experts for the products, or
// slots for products by the host.
#ifndef MOERT_KERNELS_CUDA_FEW_GIVE_WAVES_CUH_
#define MOERT_KERNELS_CUDA_FEW_GIVE_WAVES_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/cache/serve_misses.h"
#include "kernels/cuda/few/share_start.cuh"
#include "kernels/cuda/route/expert_tiles.cuh"

namespace moert::cuda {

/// The tiles of both waves of a call of few tokens, whose experts have one tile each. Made by one
/// CTA with a thread per expert and one more, up to kTileThreads.
constexpr int kWaves = 2;  // ready experts, late ones

/// Shared memory of MakeFewTiles.
struct FewTilesScratch {
  uint32_t votes[kTileThreads / 32];
  // [wave][product][tile]
  int32_t ends[kWaves][2][kFewExperts + 1];  // costs, then their sums up to and including a tile
  int32_t items[kWaves][2][kFewExperts + 1];
};

/// The rank of the thread's expert among those of its wave, and how many each wave has.
struct WavePlace {
  int at, ready, late;

  // A conditional, as an array would lie in memory.
  __device__ __forceinline__ int Tiles(int wave) const { return wave == 0 ? ready : late; }
};
/// Finds the place of the thread's expert. wave: its wave, -1: none. Called by all threads. On an
/// H200 0.19 us, by cub::BlockScan 0.37 (gpu.cub_test [rates]).
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

/// Turns costs into sums up to and including each. Called by a warp.
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

/// Stores where the shares of a wave begin, in both products. Called by all threads.
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

/// Whether every expert of a call has one tile, of the kernels for few tokens (family D).
__device__ __forceinline__ bool OneTileEach(const MakeTilesArgs& args) {
  return args.tokens <= kTileTokens && args.prompt_packings == 0;
}

/// Fills the table of `args` with the tiles of ready experts, and `late` with those of late ones.
/// expert: the tokens of the thread's expert, without a record: none; wave: its wave. beside():
/// runs while the threads of experts make their tiles. Called by all threads.
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
#pragma unroll 1  // a launch fetches its code once, which takes longer than running it
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

/// Shared memory of the tiles.
union BothTilesScratch {
  __device__ BothTilesScratch() {}
  TileScratch<kFewExperts> any;
  FewTilesScratch few;
};
/// Makes the tiles of both waves, from the handles and tokens of the thread's expert, whose pairs
/// begin at `first_pair`. kOneTileEach: only for calls for which OneTileEach holds; beside: as
/// MakeFewTiles, for such calls.
template <bool kOneTileEach, typename Beside>
__device__ __forceinline__ void MakeBothTiles(const ServeMissesArgs& args,
                                              const ExpertHandle& ready, const ExpertHandle& late,
                                              int count, int first_pair, bool any_late,
                                              BothTilesScratch& scratch, const Beside& beside) {
  const MakeTilesArgs& tiles = args.tiles;
  const int e = threadIdx.x;
  const int32_t* slots = tiles.shared_slots;
  if (e < args.experts) slots = tiles.groups.sorted + first_pair;
  if (kOneTileEach || OneTileEach(tiles)) {
    const bool waits = late.record != nullptr;
    ExpertTokens expert{ready, e == args.experts ? tiles.tokens : count, slots};
    if (waits) expert.handle = late;
    MakeFewTiles(tiles, args.late_table, expert, waits ? 1 : 0, scratch.few, beside);
    return;
  }
  const ExpertTokens first{ready, e == args.experts ? tiles.tokens : count, slots};
  MakeTiles(
      tiles, tiles.table, [&](int) { return first; }, scratch.any);
  if (!any_late) {
    MakeNoTiles(args.late_table, tiles.shares);
    return;
  }
  __syncthreads();  // the scratch has been read
  const ExpertTokens then{late, count, slots};
  MakeTiles(
      tiles, args.late_table, [&](int) { return then; }, scratch.any);
}

/// Gives both waves to the products: makes their tiles, or stores the handles of the thread's
/// expert. beside: as MakeBothTiles.
template <bool kOneTileEach, typename Beside>
__device__ __forceinline__ void GiveWaves(const ServeMissesArgs& args, const ExpertHandle& ready,
                                          const ExpertHandle& late, int count, int first_pair,
                                          bool any_late, BothTilesScratch& scratch,
                                          const Beside& beside) {
  const int e = threadIdx.x;
  if (args.makes_tiles != 0) {
    MakeBothTiles<kOneTileEach>(args, ready, late, count, first_pair, any_late, scratch, beside);
  } else if (e <= args.experts) {
    args.ready[e] = ready;
    args.late[e] = late;
  }
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_FEW_GIVE_WAVES_CUH_
