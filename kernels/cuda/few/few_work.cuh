// The tiles of few tokens, one an expert, and how they are shared out: in shared memory, by every
// CTA for itself.
#ifndef MOERT_KERNELS_CUDA_FEW_FEW_WORK_CUH_
#define MOERT_KERNELS_CUDA_FEW_FEW_WORK_CUH_

#include "kernels/cuda/few/few_products.h"
#include "kernels/cuda/few/group_share.cuh"
#include "kernels/cuda/few/share_start.cuh"
#include "kernels/cuda/few/tile_matrix.cuh"
#include "kernels/cuda/route/expert_tiles.cuh"

namespace moert::cuda {

constexpr int kChoosingTiles = kChoosingPairs + 1;
/// Formats whose matrices are resolved before experts are known: the first ones.
constexpr int kKnownFormats = 4;

struct FewTile {
  const uint8_t* record;  // null: nothing is multiplied
  int32_t format;
  int32_t count;
};

struct FewWork {
  FewTile tiles[kChoosingTiles];
  TileMatrix known[kKnownFormats][2];    // of a record at address 0
  int32_t known_cost[kKnownFormats][2];  // of a tile
  int32_t ends[2][kChoosingTiles];       // cost of the tiles up to and with this one
  uint16_t slots[kChoosingTiles][kChoosingTokens];
  const DeviceFormat* formats;
  int32_t num_tiles;
  int32_t shares;
  uint32_t one_share;

  /// The matrix of a format in a record.
  __device__ __forceinline__ TileMatrix Matrix(const uint8_t* record, int format,
                                               int product) const {
    if (format >= kKnownFormats) {
      const DeviceFormat& f = formats[format];
      return ResolveMatrix(record, product == 0 ? f.gate : f.down, product == 0 ? &f.up : nullptr);
    }
    TileMatrix m = known[format][product];
    m.weights = record + reinterpret_cast<uintptr_t>(m.weights);
    m.scales = record + reinterpret_cast<uintptr_t>(m.scales);
    return m;
  }
  __device__ __forceinline__ int Items(const FewTile& tile, int product) const {
    if (tile.record == nullptr) return 0;
    if (tile.format < kKnownFormats) return known[tile.format][product].items;
    return Matrix(tile.record, tile.format, product).items;
  }

  __device__ __forceinline__ ResolvedTile TileAt(int index, int product, int lane) const {
    const FewTile& tile = tiles[index];
    ResolvedTile t;
    t.index = index;
    t.m = Matrix(tile.record, tile.format, product);
    if (tile.record == nullptr) t.m.items = 0;
    t.count = tile.count;
    t.h_items = product == 0 ? t.m.items : Items(tile, 0);
    t.plain_h = true;
    t.slot = slots[index][min(lane, tile.count - 1)];
    return t;
  }

  __device__ __forceinline__ const float* Biases(int index, int product) const {
    const FewTile& tile = tiles[index];
    return BiasesOf(Matrix(tile.record, tile.format, product));
  }

  /// Where share `share` of a product's work begins.
  __device__ __forceinline__ Position StartOf(int product, int share) const {
    return ShareStart(ends[product], num_tiles, share, shares, one_share,
                      [&](int tile) { return Items(tiles[tile], product); });
  }

  static __device__ __forceinline__ int32_t CostOf(const TileMatrix& m) {
    return SmallTileCost(m, kChoosingTokens);
  }

  /// By one thread for each: the matrices of the formats that are known. Constants: before the
  /// kernels in front have ended.
  __device__ __forceinline__ void Know(const FewProductsArgs& args) {
    const int i = threadIdx.x;
    if (i == kGemmThreads - 1) {
      formats = args.formats;
      shares = args.gemm.shares;
      one_share = OneShare(args.gemm.shares);
    }
    if (i >= 2 * min(args.num_formats, kKnownFormats)) return;
    const DeviceFormat& f = args.formats[i / 2];
    const TileMatrix m = i % 2 == 0 ? ResolveMatrix(nullptr, f.gate, &f.up)
                                    : ResolveMatrix(nullptr, f.down, nullptr);
    known[i / 2][i % 2] = m;
    known_cost[i / 2][i % 2] = CostOf(m);
  }

  /// By a warp: the costs of a product, summed up.
  __device__ __forceinline__ void SumCosts(int product, int lane) {
    int32_t before = 0;
    for (int first = 0; first < num_tiles; first += 32) {
      const int i = first + lane;
      int32_t cost = 0;
      if (i < num_tiles && tiles[i].record != nullptr) {
        const int format = tiles[i].format;
        cost = format < kKnownFormats ? known_cost[format][product]
                                      : CostOf(Matrix(tiles[i].record, format, product));
      }
      const int32_t sum = WarpSums(Several<int32_t, 1>{cost}).v[0];
      if (i < num_tiles) ends[product][i] = before + sum;
      before += __shfl_sync(~0u, sum, 31);
    }
    __syncwarp();
  }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_FEW_FEW_WORK_CUH_
