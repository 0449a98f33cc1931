// The work of the grouped products: tiles of an expert's tokens, in equal shares of cost.
#include <cuda_runtime.h>

#include "kernels/cuda/group_gemm.h"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/tile_matrix.cuh"
#include "kernels/cuda/primitives/top_k.cuh"
#include "kernels/cuda/prompt_gemm.h"
#include "kernels/cuda/route.h"

namespace moert::cuda {
namespace {

constexpr int kTileThreads = kMaxExperts + 32;

/// What an item costs, in bytes of bf16 that take as long: the bytes it reads, or the instructions
/// where products of few bits are bound by them.
__device__ int ItemCost(const TileMatrix& m, int tokens) {
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

/// Where share `cta` of `ctas` equal shares of the work begins. cost: up to and with each tile.
__device__ Position StartOf(const Tile* tiles, const int64_t* cost, int num_tiles, int product,
                            int cta, int ctas) {
  if (num_tiles == 0) return {0, 0};
  const int64_t target = cost[num_tiles - 1] * cta / ctas;
  int low = 0, high = num_tiles;  // the first tile that ends behind the target
  while (low < high) {
    const int middle = (low + high) / 2;
    if (cost[middle] > target) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  if (low == num_tiles) return {num_tiles, 0};
  const int64_t before = low == 0 ? 0 : cost[low - 1];
  const int64_t items = tiles[low].matrix[product].items;
  const auto item = static_cast<int>(((target - before) * items + (cost[low] - before) - 1) /
                                     (cost[low] - before));
  return item >= items ? Position{low + 1, 0} : Position{low, item};
}

/// One CTA: a thread an expert counts its tiles, a scan places them, threads write them; then a
/// thread a CTA of the products finds its share.
__global__ void __launch_bounds__(kTileThreads)
    MakeTilesKernel(const __grid_constant__ MakeTilesArgs args) {
  TriggerDependentLaunch();
  GridDependencySync();
  __shared__ int warp_tiles[32];
  __shared__ int64_t warp_cost[2][32];
  const int e = threadIdx.x;
  const int lane = e % 32;
  const int warp = e / 32;
  const bool shared = e == args.experts;
  int count = 0;
  ExpertHandle handle{};
  if (e <= args.experts && args.wave.Has(e)) {
    handle = args.handles[e];
    if (handle.record != nullptr) count = shared ? args.tokens : args.groups.counts[e];
  }
  if (args.prompt_packings != 0 && count > 0 &&
      IsPromptFormat(args.formats[handle.format], args.prompt_packings)) {
    count = 0;
  }
  const int tiles = (count + kTileTokens - 1) / kTileTokens;
  Tile tile{};
  int64_t cost[2] = {}, last_cost[2] = {};
  if (tiles > 0) {
    const DeviceFormat& f = args.formats[handle.format];
    tile.matrix[0] = ResolveMatrix(handle.record, f.gate, &f.up);
    tile.matrix[1] = ResolveMatrix(handle.record, f.down, nullptr);
    // Of a tile that is full; the last may cost less.
    for (int p = 0; p < 2; ++p) {
      cost[p] = int64_t{tile.matrix[p].items} * ItemCost(tile.matrix[p], min(count, kTileTokens));
      last_cost[p] = int64_t{tile.matrix[p].items} *
                     ItemCost(tile.matrix[p], count - (tiles - 1) * kTileTokens);
    }
  }

  // Inclusive scans over experts, made exclusive.
  int tile_sum = tiles;
  int64_t cost_sum[2];
  for (int p = 0; p < 2; ++p) cost_sum[p] = max(tiles - 1, 0) * cost[p] + last_cost[p];
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int t = __shfl_up_sync(kFull, tile_sum, d);
    const int64_t c0 = __shfl_up_sync(kFull, cost_sum[0], d);
    const int64_t c1 = __shfl_up_sync(kFull, cost_sum[1], d);
    if (lane >= d) {
      tile_sum += t;
      cost_sum[0] += c0;
      cost_sum[1] += c1;
    }
  }
  if (lane == 31) {
    warp_tiles[warp] = tile_sum;
    warp_cost[0][warp] = cost_sum[0];
    warp_cost[1][warp] = cost_sum[1];
  }
  __syncthreads();
  int num_tiles = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) {
    if (w == warp) {
      tile_sum += num_tiles;
    }
    num_tiles += warp_tiles[w];
    if (w < warp) {
      cost_sum[0] += warp_cost[0][w];
      cost_sum[1] += warp_cost[1][w];
    }
  }
  if (e < 2) args.table.ticket[e] = 0;
  const int first = tile_sum - tiles;
  const int32_t* slots = shared      ? args.shared_slots
                         : tiles > 0 ? args.groups.sorted + args.groups.firsts[e]
                                     : nullptr;
  for (int i = 0; i < tiles; ++i) {
    const int at = first + i;
    tile.slots = slots + i * kTileTokens;
    tile.count = min(kTileTokens, count - i * kTileTokens);
    args.table.tiles[at] = tile;
    args.table.ready[at] = 0;
    for (int p = 0; p < 2; ++p) {
      args.table.cost[p][at] =
          i == tiles - 1 ? cost_sum[p] : cost_sum[p] - last_cost[p] - (tiles - 2 - i) * cost[p];
    }
  }
  __syncthreads();
  for (int cta = e; cta <= args.shares; cta += static_cast<int>(blockDim.x)) {
    for (int p = 0; p < 2; ++p) {
      args.table.starts[p][cta] =
          StartOf(args.table.tiles, args.table.cost[p], num_tiles, p, cta, args.shares);
    }
  }
}

__global__ void UpdateTableKernel(ExpertHandle* table,
                                  const __grid_constant__ TableUpdates updates) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int i = threadIdx.x;
  if (i < updates.count) table[updates.index[i]] = updates.handle[i];
}

}  // namespace

int LaunchMakeTiles(const MakeTilesArgs& args, CUstream_st* stream) {
  const int threads = (args.experts + 1 + 31) / 32 * 32;
  return LaunchEarly(MakeTilesKernel, 1, threads, 0, stream, args);
}

int LaunchUpdateTable(ExpertHandle* table, const TableUpdates& updates, CUstream_st* stream) {
  return LaunchEarly(UpdateTableKernel, 1, TableUpdates::kMax, 0, stream, table, updates);
}

}  // namespace moert::cuda
