// The units and tiles of family P (prompt_gemm.h), by one CTA.
#include <cuda_runtime.h>

#include "kernels/cuda/primitives/cta_sums.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/tile_matrix.cuh"
#include "kernels/cuda/prompt_gemm.h"

namespace moert::cuda {
namespace {

constexpr int kThreads = 1024;
static_assert(kThreads > kMaxExperts);
constexpr int kNowhere = kPromptPackings;  // of experts that have no tiles

using Two = Several<int, 2>;

/// What an expert has in one product.
struct Share {
  int unit, units, row_tiles, packing;
};

__global__ void __launch_bounds__(kThreads)
    MakePromptTilesKernel(const __grid_constant__ MakePromptTilesArgs args) {
  TriggerDependentLaunch();
  GridDependencySync();
  __shared__ Two scratch[2][32];
  __shared__ int key[2][kMaxExperts + 1];       // packing, then tokens
  __shared__ int ends[2][kMaxExperts + 1];      // of the tiles of the r-th expert
  __shared__ Share shares[2][kMaxExperts + 1];  // of the r-th expert
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
  const int columns = count > 0 ? PromptShare(args.most, count) : 0;
  const int units = count > 0 ? (count + columns - 1) / columns : 0;
  const int last = count - (units - 1) * columns;
  const int rows = units > 0 ? (units - 1) * columns + PromptColumns(args.most, last) : 0;
  Two total;
  const Two first = SumBefore(Two{units, rows}, scratch[0], &total);
  Share share[2] = {{first.v[0], units, 0, kNowhere}, {first.v[0], units, 0, kNowhere}};
  if (units > 0) {
    PromptUnit unit{};
    unit.matrix[0] = ResolveMatrix(handle.record, format->gate, &format->up);
    unit.matrix[1] = ResolveMatrix(handle.record, format->down, nullptr);
    share[0].packing = PromptPacking(format->gate);
    share[1].packing = PromptPacking(format->down);
    share[0].row_tiles = (unit.matrix[0].row_blocks + 3) / 4;
    share[1].row_tiles = (unit.matrix[1].row_blocks + 7) / 8;
    const int32_t* slots = shared ? args.shared_slots : args.groups.sorted + args.groups.firsts[e];
    for (int i = 0; i < units; ++i) {
      unit.slots = slots + i * columns;
      unit.count = i + 1 < units ? columns : last;
      unit.columns = PromptColumns(args.most, unit.count);
      unit.h_row = first.v[1] + i * columns;
      args.table.units[first.v[0] + i] = unit;
    }
  }
  if (e == 0) *args.table.unit_count = total.v[0];
  if (e < 2 * kPromptPackings) args.table.tickets[e / kPromptPackings][e % kPromptPackings] = 0;

  // Packing by packing, the fullest expert first.
  if (is_expert) {
    for (int p = 0; p < 2; ++p) key[p][e] = share[p].packing << 24 | (0xffffff - count);
  }
  __syncthreads();
  if (is_expert) {
    int rank[2] = {};
#pragma unroll 8
    for (int other = 0; other <= args.experts; ++other) {
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const int theirs = key[p][other], mine = key[p][e];
        rank[p] += theirs < mine || (theirs == mine && other < e) ? 1 : 0;
      }
    }
    for (int p = 0; p < 2; ++p) shares[p][rank[p]] = share[p];
  }
  __syncthreads();
  Two tiles{};
  if (is_expert) {
    for (int p = 0; p < 2; ++p) tiles.v[p] = shares[p][e].units * shares[p][e].row_tiles;
  }
  const Two before = SumBefore(tiles, scratch[1], &total);
  if (is_expert) {
    for (int p = 0; p < 2; ++p) {
      ends[p][e] = before.v[p] + tiles.v[p];
      // The r-th expert begins its packing, and those that nothing before it has.
      const int packing = shares[p][e].packing;
      for (int i = e == 0 ? 0 : shares[p][e - 1].packing + 1; i <= packing; ++i) {
        args.table.begins[p][i] = before.v[p];
      }
      if (e == args.experts) {
        for (int i = packing + 1; i <= kNowhere; ++i) args.table.begins[p][i] = total.v[p];
      }
    }
  }
  __syncthreads();
  for (int p = 0; p < 2; ++p) {
    for (int at = e; at < total.v[p]; at += kThreads) {
      int low = 0, high = args.experts;  // the first that ends behind `at`
      while (low < high) {
        const int middle = (low + high) / 2;
        if (ends[p][middle] > at) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      const Share s = shares[p][low];
      const auto in = static_cast<uint32_t>(at - (ends[p][low] - s.units * s.row_tiles));
      const uint32_t row_tile = in / static_cast<uint32_t>(s.units);
      // Units of an expert take the same weights one beside the other.
      args.table.tiles[p][at] = (s.unit + in - row_tile * s.units) | row_tile << 16;
    }
  }
}

}  // namespace

int LaunchMakePromptTiles(const MakePromptTilesArgs& args, CUstream_st* stream) {
  return LaunchEarly(MakePromptTilesKernel, 1, kThreads, 0, stream, args);
}

}  // namespace moert::cuda
