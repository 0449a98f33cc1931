// The call's results behind its decision (serve_call.cuh): both waves of experts for the products,
// or slots for a host's own.
#ifndef MOERT_KERNELS_CUDA_FEW_GIVE_WAVES_CUH_
#define MOERT_KERNELS_CUDA_FEW_GIVE_WAVES_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/cache/serve_misses.h"
#include "kernels/cuda/few/few_tiles.cuh"
#include "kernels/cuda/route/expert_tiles.cuh"

namespace moert::cuda {

/// Shared memory of the tiles.
union BothTilesScratch {
  __device__ BothTilesScratch() {}
  TileScratch<kFewExperts> any;
  FewTilesScratch few;
};
/// The tiles of both waves: thread e's handles and the tokens of its expert, whose pairs begin at
/// `first_pair`. kOneTileEach: of calls for which OneTileEach holds alone; beside: as MakeFewTiles,
/// of such calls.
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

/// Gives both waves to the products: their tiles of both waves, or the handles of the thread's
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

/// The number of the expert of pair i, of a call whose product is the host's: -1: it has no slot;
/// -2: the pair names none.
__device__ __forceinline__ int32_t NumberOf(const ServeMissesArgs& args, const int32_t* numbers,
                                            int i) {
  const int32_t id = args.ids[i];
  return id >= 0 && id < args.experts ? numbers[id] : -2;
}
/// A slot for pair i, whose expert has none: one that no other pair of its token has, since kernels
/// that group pairs by expert expect a token to name each of them once.
__device__ __forceinline__ int32_t SpareNumber(const ServeMissesArgs& args, const int32_t* numbers,
                                               int i) {
  const int k = args.pairs / args.tokens, first = i - i % k;
  int before = 0;  // pairs of the token in front that have none, either
  for (int j = first; j < i; ++j) before += NumberOf(args, numbers, j) == -1 ? 1 : 0;
  for (int32_t number = 0;; ++number) {
    bool taken = false;
    for (int j = first; j < first + k; ++j) taken |= NumberOf(args, numbers, j) == number;
    if (!taken && before-- == 0) return number;  // below k
  }
}

/// Says where the experts of the call lie: `slot` is the thread's expert's, of the layer. By all
/// threads; `numbers` is theirs to use.
__device__ __forceinline__ void GiveSlots(const ServeMissesArgs& args, int slot, int32_t* numbers) {
  const int e = threadIdx.x;
  __syncthreads();
  if (e < args.experts) {
    const int32_t number =
        slot < 0 ? -1 : static_cast<int32_t>((args.slots[slot] - args.base) / args.stride);
    numbers[e] = number;
    args.table[e] = number;
  }
  __syncthreads();
  if (args.found == nullptr) return;
  for (int i = e; i < args.pairs; i += kTileThreads) {
    const int32_t number = NumberOf(args, numbers, i);
    args.found[i] = number >= 0                             ? number
                    : number == -1 && args.any_slot != 0 ? SpareNumber(args, numbers, i)
                                                            : -1;
  }
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_FEW_GIVE_WAVES_CUH_
