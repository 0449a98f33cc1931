// The work of the grouped products: tiles of an expert's tokens, in equal shares of cost.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_EXPERT_TILES_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_EXPERT_TILES_CUH_

#include "kernels/cuda/primitives/cta_sums.cuh"
#include "kernels/cuda/primitives/tile_matrix.cuh"
#include "kernels/cuda/prompt_gemm.h"
#include "kernels/cuda/route.h"

namespace moert::cuda {

constexpr int kTileThreads = kMaxExperts + 32;

/// What an item costs, in bytes of bf16 that take as long: the bytes it reads, or the instructions
/// where products of few bits are bound by them.
__device__ inline int ItemCost(const TileMatrix& m, int tokens) {
  constexpr int kItem = 3000;
  const bool many = tokens > 8;
  int k64 = 0;
  switch (m.packing) {
    case Packing::kBf16:
      k64 = many ? 4300 : 4096;
      break;
    case Packing::kW8:
    case Packing::kF8:
    case Packing::kF8Block:
      k64 = many ? 2400 : 2150;
      break;
    case Packing::kW8A8:
      k64 = 2100;
      break;
    case Packing::kW4:
      k64 = many ? 1250 : 1100;
      break;
    case Packing::kW3:
    case Packing::kMxFp4:
    case Packing::kNvFp4:
    case Packing::kW4Group:
    case Packing::kW4GroupF16:
      k64 = many ? 1500 : 1350;
      break;
    case Packing::kW2:
      k64 = many ? 1150 : 850;
      break;
    case Packing::kW4A8:
      k64 = 1100;
      break;
  }
  return m.k64s * k64 + kItem;
}

/// The tiles of one expert in one product. The last may cost less than the others.
struct TileCosts {
  int64_t end;  // of all experts up to and with this one
  int64_t full;
  int64_t last;
};
struct ExpertWork {
  TileCosts costs[2];
  int first;  // tile
  int tiles;
  int items[2];  // of a tile
};

/// Shared memory of MakeTiles.
struct TileScratch {
  Several<int64_t, 3> sums[32];
  ExpertWork work[kMaxExperts + 1];
};

/// Where share `cta` of `ctas` equal shares of a product's work begins.
__device__ __forceinline__ Position StartOf(const ExpertWork* work, int experts, int num_tiles,
                                            int product, int cta, int ctas) {
  const int64_t target = work[experts].costs[product].end * cta / ctas;
  int low = 0, high = experts + 1;  // the first expert that ends behind the target
  while (low < high) {
    const int middle = (low + high) / 2;
    if (work[middle].costs[product].end > target) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  if (low > experts) return {num_tiles, 0};
  const ExpertWork& of = work[low];
  const TileCosts& costs = of.costs[product];
  const int64_t begin = costs.end - (of.tiles - 1) * costs.full - costs.last;
  const int64_t tile = min((target - begin) / costs.full, int64_t{of.tiles} - 1);
  const int64_t cost = tile + 1 < of.tiles ? costs.full : costs.last;
  const int64_t items = of.items[product];
  const auto item =
      static_cast<int>(((target - begin - tile * costs.full) * items + cost - 1) / cost);
  const int at = of.first + static_cast<int>(tile);
  return item >= items ? Position{at + 1, 0} : Position{at, item};
}

/// By a CTA of kTileThreads, thread e for expert e: its `count` tokens (0 of experts that are not
/// to be multiplied), whose slots begin at `slots`. Places tiles by a scan, writes them, and finds
/// where shares begin.
__device__ __forceinline__ void MakeTiles(const MakeTilesArgs& args, const ExpertHandle& handle,
                                          int count, const int32_t* slots, TileScratch& scratch) {
  const int e = threadIdx.x;
  if (handle.record == nullptr) count = 0;
  if (args.prompt_packings != 0 && count > 0 &&
      IsPromptFormat(args.formats[handle.format], args.prompt_packings)) {
    count = 0;
  }
  const int tiles = (count + kTileTokens - 1) / kTileTokens;
  Tile tile{};
  ExpertWork work{};
  Several<int64_t, 3> mine{};
  if (tiles > 0) {
    const DeviceFormat& f = args.formats[handle.format];
    tile.matrix[0] = ResolveMatrix(handle.record, f.gate, &f.up);
    tile.matrix[1] = ResolveMatrix(handle.record, f.down, nullptr);
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      const int items = tile.matrix[p].items;
      work.items[p] = items;
      work.costs[p].full = int64_t{items} * ItemCost(tile.matrix[p], min(count, kTileTokens));
      work.costs[p].last =
          int64_t{items} * ItemCost(tile.matrix[p], count - (tiles - 1) * kTileTokens);
      mine.v[p] = (tiles - 1) * work.costs[p].full + work.costs[p].last;
    }
    mine.v[2] = tiles;
  }
  Several<int64_t, 3> total;
  const Several<int64_t, 3> before = SumBefore(mine, scratch.sums, &total);
  work.first = static_cast<int>(before.v[2]);
  work.tiles = tiles;
#pragma unroll
  for (int p = 0; p < 2; ++p) work.costs[p].end = before.v[p] + mine.v[p];
  if (e <= args.experts) scratch.work[e] = work;
  if (e < 2) args.table.ticket[e] = 0;
  __syncthreads();
  for (int i = e; i < 2 * (args.shares + 1); i += kTileThreads) {
    const int p = i & 1, cta = i >> 1;
    args.table.starts[p][cta] =
        StartOf(scratch.work, args.experts, static_cast<int>(total.v[2]), p, cta, args.shares);
  }
  for (int i = 0; i < tiles; ++i) {
    const int at = work.first + i;
    tile.slots = slots + i * kTileTokens;
    tile.count = min(kTileTokens, count - i * kTileTokens);
    args.table.tiles[at] = tile;
    args.table.ready[at] = 0;
  }
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_EXPERT_TILES_CUH_
