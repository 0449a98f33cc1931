// Makes the units and tiles of family P (prompt_gemm.h), in one CTA.
#include <cuda_runtime.h>

#include "kernels/cuda/few/tile_matrix.cuh"
#include "kernels/cuda/primitives/cta_sums.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/prompt/prompt_gemm.h"

namespace moert::cuda {
namespace {

constexpr int kThreads = 1024;
static_assert(kThreads > kFewExperts);
constexpr int kNowhere = kPromptPackings;  // packing of experts without tiles

using Two = Several<int, 2>;

/// An expert's tiles in one product: units x row_tiles, beginning with unit `unit`.
struct Share {
  int unit, units, row_tiles, packing;
};

/// An expert's tokens cut into units of at most `columns`.
struct UnitCut {
  int count, columns, units, last;

  __device__ __forceinline__ UnitCut(int most, int tokens)
      : count(tokens), columns(tokens > 0 ? PromptShare(most, tokens) : 0) {
    units = count > 0 ? (count + columns - 1) / columns : 0;
    last = count - (units - 1) * columns;
  }
  __device__ __forceinline__ int Rows(int most) const {
    return units > 0 ? (units - 1) * columns + PromptColumns(most, last) : 0;
  }
};

/// Writes an expert's units, at least one, beginning with unit `first` and row `h_row` of h; and
/// its shares of both products.
__device__ __forceinline__ void WriteUnits(const MakePromptTilesArgs& args, const uint8_t* record,
                                           const DeviceFormat& format, const int32_t* slots,
                                           const UnitCut& cut, int first, int h_row,
                                           Share (&share)[2]) {
  PromptUnit unit{};
  unit.matrix[0] = ResolveMatrix(record, format.gate, &format.up);
  unit.matrix[1] = ResolveMatrix(record, format.down, nullptr);
  share[0].packing = PromptPacking(format.gate);
  share[1].packing = PromptPacking(format.down);
  const int of_tile = PromptRowBlocks(args.most);
  share[0].row_tiles = (unit.matrix[0].row_blocks + of_tile / 2 - 1) / (of_tile / 2);
  share[1].row_tiles = (unit.matrix[1].row_blocks + of_tile - 1) / of_tile;
  for (int i = 0; i < cut.units; ++i) {
    unit.slots = slots + i * cut.columns;
    unit.count = i + 1 < cut.units ? cut.columns : cut.last;
    unit.columns = PromptColumns(args.most, unit.count);
    unit.h_row = h_row + i * cut.columns;
    args.table.units[first + i] = unit;
  }
}

using ExpertNumbers = int[2][kFewExperts + 1];  // of both products
using ExpertShares = Share[2][kFewExperts + 1];

/// Orders experts by packing, then by tokens, the fullest first. Adds to `rank`, which must be
/// zero, how many experts come before each. Several threads share the comparisons of an expert.
__device__ __forceinline__ void CountBefore(int experts, const ExpertNumbers& key,
                                            ExpertNumbers& rank) {
  const int e = threadIdx.x;
  const int span = (experts + 32) / 32 * 32;
  const int parts = kThreads / span, part = e / span, mine = e % span;
  if (part >= parts || mine > experts) return;
  int before[2] = {};
#pragma unroll 4
  for (int other = part; other <= experts; other += parts) {
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      const int theirs = key[p][other], own = key[p][mine];
      before[p] += theirs < own || (theirs == own && other < mine) ? 1 : 0;
    }
  }
  for (int p = 0; p < 2; ++p) atomicAdd(&rank[p][mine], before[p]);
}

/// Writes where the tiles of each packing begin in both products, and where the tiles of the r-th
/// expert end, r being the thread's index. `before`: tiles of the experts before it; `tiles`: its
/// own.
__device__ __forceinline__ void WriteBegins(const MakePromptTilesArgs& args,
                                            const ExpertShares& shares, const Two& before,
                                            const Two& tiles, const Two& total,
                                            ExpertNumbers& ends) {
  const int e = threadIdx.x;
  for (int p = 0; p < 2; ++p) {
    const auto write = [&](int packing, int begin) {
      args.table.begins[p][packing] = begin;
      if (packing < kPromptPackings) args.table.tickets[p][packing] = begin;
    };
    ends[p][e] = before.v[p] + tiles.v[p];
    // If the r-th expert is the first of its packing, that packing begins here, as do the empty
    // ones before it.
    const int packing = shares[p][e].packing;
    for (int i = e == 0 ? 0 : shares[p][e - 1].packing + 1; i <= packing; ++i) {
      write(i, before.v[p]);
    }
    if (e == args.experts) {
      for (int i = packing + 1; i <= kNowhere; ++i) write(i, total.v[p]);
    }
  }
}

/// Writes the tiles. A warp writes those of one expert in one product. `ends`: where the tiles of
/// the r-th expert end.
__device__ __forceinline__ void WriteTiles(const MakePromptTilesArgs& args,
                                           const ExpertShares& shares, const ExpertNumbers& ends) {
  const int e = threadIdx.x;
  for (int task = e / 32; task < 2 * (args.experts + 1); task += kThreads / 32) {
    const int p = task & 1, r = task >> 1;
    const Share s = shares[p][r];
    const auto count_of = static_cast<uint32_t>(s.units * s.row_tiles);
    uint32_t* to = args.table.tiles[p] + ends[p][r] - count_of;
    for (uint32_t at = e % 32; at < count_of; at += 32) {
      const uint32_t row_tile = at / static_cast<uint32_t>(s.units);
      // Tiles with the same weights are adjacent.
      to[at] = (s.unit + at - row_tile * s.units) | row_tile << 16;
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    MakePromptTilesKernel(const __grid_constant__ MakePromptTilesArgs args) {
  TriggerDependentLaunch();
  GridDependencySync();
  __shared__ Two scratch[2][32];
  __shared__ ExpertNumbers key;  // packing, then tokens
  __shared__ ExpertNumbers rank;
  __shared__ ExpertNumbers ends;   // of the tiles of the r-th expert
  __shared__ ExpertShares shares;  // of the r-th expert
  const int e = threadIdx.x;
  const bool shared = e == args.experts;
  const bool is_expert = e <= args.experts;
  int count = 0;
  ExpertHandle handle{};
  if (is_expert && args.wave.Has(e)) {
    handle = args.handles[e];
    count = shared ? args.tokens : args.groups.counts[e];
    if (handle.record == nullptr) count = 0;
  }
  const DeviceFormat* format = nullptr;
  if (count > 0) {
    format = args.formats + handle.format;
    if (!IsPromptFormat(*format, args.packings)) count = 0;
  }
  const UnitCut cut(args.most, count);
  Two total;
  const Two first = SumBefore(Two{cut.units, cut.Rows(args.most)}, scratch[0], &total);
  Share share[2] = {{first.v[0], cut.units, 0, kNowhere}, {first.v[0], cut.units, 0, kNowhere}};
  if (cut.units > 0) {
    const int32_t* slots = shared ? args.shared_slots : args.groups.sorted + args.groups.firsts[e];
    WriteUnits(args, handle.record, *format, slots, cut, first.v[0], first.v[1], share);
  }
  if (e == 0) *args.table.unit_count = total.v[0];

  if (is_expert) {
    for (int p = 0; p < 2; ++p) {
      key[p][e] = share[p].packing << 24 | (0xffffff - count);
      rank[p][e] = 0;
    }
  }
  __syncthreads();
  CountBefore(args.experts, key, rank);
  __syncthreads();
  if (is_expert) {
    for (int p = 0; p < 2; ++p) shares[p][rank[p][e]] = share[p];
  }
  __syncthreads();
  Two tiles{};
  if (is_expert) {
    for (int p = 0; p < 2; ++p) tiles.v[p] = shares[p][e].units * shares[p][e].row_tiles;
  }
  const Two before = SumBefore(tiles, scratch[1], &total);
  if (is_expert) WriteBegins(args, shares, before, tiles, total, ends);
  __syncthreads();
  WriteTiles(args, shares, ends);
}

}  // namespace

int LaunchMakePromptTiles(const MakePromptTilesArgs& args, CUstream_st* stream) {
  return LaunchEarly(MakePromptTilesKernel, 1, kThreads, 0, stream, args);
}

}  // namespace moert::cuda
