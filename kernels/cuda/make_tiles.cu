#include <cuda_runtime.h>

#include "kernels/cuda/primitives/expert_tiles.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace moert::cuda {
namespace {

/// One CTA.
__global__ void __launch_bounds__(kTileThreads)
    MakeTilesKernel(const __grid_constant__ MakeTilesArgs args) {
  TriggerDependentLaunch();
  GridDependencySync();
  __shared__ TileScratch scratch;
  const int e = threadIdx.x;
  const bool shared = e == args.experts;
  int count = 0;
  ExpertHandle handle{};
  const int32_t* slots = args.shared_slots;
  if (e <= args.experts && args.wave.Has(e)) {
    handle = args.handles[e];
    count = shared ? args.tokens : args.groups.counts[e];
    if (!shared) slots = args.groups.sorted + args.groups.firsts[e];
  }
  MakeTiles(args, handle, count, slots, scratch);
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
  return LaunchEarly(MakeTilesKernel, 1, kTileThreads, 0, stream, args);
}

int LaunchUpdateTable(ExpertHandle* table, const TableUpdates& updates, CUstream_st* stream) {
  return LaunchEarly(UpdateTableKernel, 1, TableUpdates::kMax, 0, stream, table, updates);
}

}  // namespace moert::cuda
