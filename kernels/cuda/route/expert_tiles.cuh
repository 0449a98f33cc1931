// The work of the grouped products: tiles of an expert's tokens, in equal shares of cost.
#ifndef MOERT_KERNELS_CUDA_ROUTE_EXPERT_TILES_CUH_
#define MOERT_KERNELS_CUDA_ROUTE_EXPERT_TILES_CUH_

#include "kernels/cuda/few/tile_matrix.cuh"
#include "kernels/cuda/primitives/cta_sums.cuh"
#include "kernels/cuda/primitives/prefetch_l1.cuh"
#include "kernels/cuda/prompt/prompt_gemm.h"
#include "kernels/cuda/route/route.h"

namespace moert::cuda {

constexpr int kTileThreads = kFewExperts + 32;

/// The cost of an item, as the number of bytes of bf16 that take as long. It follows from the bytes
/// read or, where products of few bits are bound by instructions, from these.
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

/// The cost of a tile of few tokens, in units of 64 such bytes, so that a whole layer's fits 32
/// bits.
__device__ __forceinline__ int32_t SmallTileCost(const TileMatrix& m, int tokens) {
  return static_cast<int32_t>(int64_t{m.items} * ItemCost(m, tokens) / 64);
}

/// The costs of one expert's tiles in one product. The last may cost less than the others. They are
/// whole numbers, kept as double because that divides much faster.
struct TileCosts {
  double end;  // sum over the experts up to and including this one
  double full;
  double last;
};
struct ExpertWork {
  TileCosts costs[2];
  int first;  // tile
  int tiles;
  int items[2];  // of a tile
};

/// Shared memory of MakeTiles for up to kExperts experts.
template <int kExperts>
struct TileScratch {
  Several<int64_t, 3> sums[32];
  ExpertWork work[kExperts + 1];
};

/// An expert's products.
struct ExpertTokens {
  ExpertHandle handle;  // no record: nothing
  int count = 0;
  const int32_t* slots = nullptr;
};

/// Where share `cta` of `ctas` equal shares of a product's work begins. It never decreases with
/// `cta`, since every operation is monotonic.
__device__ __forceinline__ Position StartOf(const ExpertWork* work, int experts, int num_tiles,
                                            int product, int cta, int ctas) {
  const double target =
      work[experts].costs[product].end * (static_cast<double>(cta) / static_cast<double>(ctas));
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
  const double offset = target - (costs.end - (of.tiles - 1) * costs.full - costs.last);
  const int tile = min(static_cast<int>(offset / costs.full), of.tiles - 1);
  const double cost = tile + 1 < of.tiles ? costs.full : costs.last;
  const int items = of.items[product];
  const auto item = static_cast<int>(ceil((offset - tile * costs.full) / cost * items));
  const int at = of.first + tile;
  return item >= items ? Position{at + 1, 0} : Position{at, max(item, 0)};
}

/// Fills in the costs of an expert's `tiles` tiles in both products, and their sums in `all`.
__device__ __forceinline__ void FillCosts(const Tile& tile, int tiles, int count, ExpertWork* work,
                                          Several<int64_t, 3>* all) {
#pragma unroll
  for (int p = 0; p < 2; ++p) {
    const int items = tile.matrix[p].items;
    work->items[p] = items;
    const int64_t full = int64_t{items} * ItemCost(tile.matrix[p], min(count, kTileTokens));
    const int64_t last =
        int64_t{items} * ItemCost(tile.matrix[p], count - (tiles - 1) * kTileTokens);
    all->v[p] = (tiles - 1) * full + last;
    work->costs[p].full = static_cast<double>(full);
    work->costs[p].last = static_cast<double>(last);
  }
}

/// Prefetches a format into L1, since making tiles reads it at once.
__device__ __forceinline__ void PrefetchFormat(const DeviceFormat* format) {
  const auto* at = reinterpret_cast<const char*>(format);
  PrefetchToL1(at);
  PrefetchToL1(at + sizeof(DeviceFormat) - 1);
}

/// Places tiles in `table` by a scan, writes them, and finds where shares begin. `of(e)`: the
/// tokens of expert e; the shared expert is the last one, behind it there are none. Called by a CTA
/// of kTileThreads.
template <int kExperts, typename Of>
__device__ __forceinline__ void MakeTiles(const MakeTilesArgs& args, const TileTable& table, Of of,
                                          TileScratch<kExperts>& scratch) {
  Several<int64_t, 3> done{};  // costs of both products, tiles
#pragma unroll 1
  for (int round = 0; round <= kExperts / kTileThreads; ++round) {
    const int e = round * kTileThreads + static_cast<int>(threadIdx.x);
    const ExpertTokens tokens = of(e);
    int count = tokens.handle.record == nullptr ? 0 : tokens.count;
    const DeviceFormat& f = args.formats[tokens.handle.format];
    if (args.prompt_packings != 0 && count > 0 && IsPromptFormat(f, args.prompt_packings)) {
      count = 0;
    }
    const int tiles = (count + kTileTokens - 1) / kTileTokens;
    Tile tile{};
    ExpertWork work{};
    Several<int64_t, 3> mine{};
    if (tiles > 0) {
      tile.matrix[0] = ResolveMatrix(tokens.handle.record, f.gate, &f.up);
      tile.matrix[1] = ResolveMatrix(tokens.handle.record, f.down, nullptr);
      FillCosts(tile, tiles, count, &work, &mine);
      mine.v[2] = tiles;
    }
    if (round > 0) __syncthreads();  // the scratch has been read
    Several<int64_t, 3> total;
    const Several<int64_t, 3> before = SumBefore(mine, scratch.sums, &total);
    work.first = static_cast<int>(done.v[2] + before.v[2]);
    work.tiles = tiles;
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      work.costs[p].end = static_cast<double>(done.v[p] + before.v[p] + mine.v[p]);
    }
    if (e <= args.experts) scratch.work[e] = work;
    for (int i = 0; i < tiles; ++i) {
      const int at = work.first + i;
      tile.slots = tokens.slots + i * kTileTokens;
      tile.count = min(kTileTokens, count - i * kTileTokens);
      table.tiles[at] = tile;
      table.ready[at] = 0;
    }
#pragma unroll
    for (int i = 0; i < 3; ++i) done.v[i] += total.v[i];
  }
  if (threadIdx.x < 2) table.ticket[threadIdx.x] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * (args.shares + 1); i += kTileThreads) {
    const int p = i & 1, cta = i >> 1;
    table.starts[p][cta] =
        StartOf(scratch.work, args.experts, static_cast<int>(done.v[2]), p, cta, args.shares);
  }
}

/// A table of no tiles.
__device__ __forceinline__ void MakeNoTiles(const TileTable& table, int shares) {
  const int i = threadIdx.x;
  for (int at = i; at < 2 * (shares + 1); at += kTileThreads) {
    table.starts[at & 1][at >> 1] = Position{0, 0};
  }
  if (i < 2) table.ticket[i] = 0;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_ROUTE_EXPERT_TILES_CUH_
