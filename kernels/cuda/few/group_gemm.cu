#include <cuda_runtime.h>

#include "kernels/cuda/few/group_gemm.h"
#include "kernels/cuda/few/group_share.cuh"
#include "kernels/cuda/few/tile_matrix.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace moert::cuda {
namespace {

/// Tiles and shares as LaunchMakeTiles stored them.
struct TableWork {
  const TileTable& table;

  __device__ __forceinline__ ResolvedTile TileAt(int index, int product, int lane) const {
    const Tile& tile = table.tiles[index];
    ResolvedTile t;
    t.index = index;
    t.m = tile.matrix[product];
    t.count = tile.count;
    t.h_items = tile.matrix[0].items;
    t.plain_h = tile.matrix[1].operand == 0;
    t.slot = tile.slots[min(lane, t.count - 1)];
    return t;
  }
  __device__ __forceinline__ const float* Biases(int index, int product) const {
    return BiasesOf(table.tiles[index].matrix[product]);
  }
  __device__ __forceinline__ Position StartOf(int product, int share) const {
    return table.starts[product][share];
  }
};

__global__ void __launch_bounds__(kGemmThreads, kGemmCtas)
    GroupGemmKernel(const __grid_constant__ GroupGemmArgs args) {
  extern __shared__ __align__(128) float shared[];
  __shared__ TakenShares taken;
  GridDependencySync();
  TriggerDependentLaunch();
  const TableWork work{args.table};
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  // The shares of both products are read at once, so that the latency of reading a share of `down`
  // is hidden by the products of gate and up.
  if (threadIdx.x % 32 == 0 && warp >= args.first && warp <= args.last) {
    const bool both = args.first != args.last;
    Take(args, warp, both ? atomicAdd(args.table.ticket + warp, 1) : blockIdx.x, work, &taken);
    InitMbarrier(&taken.mbarriers[warp]);
  }
  __syncthreads();
  RunShares<kTileTokens / 8>(args, work, taken, shared);
}

int Launch(GroupGemmArgs args, int first, int last, cudaStream_t stream) {
  const cudaError_t error = cudaFuncSetAttribute(
      GroupGemmKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kGemmSharedBytes);
  if (error != cudaSuccess) return error;
  args.first = first;
  args.last = last;
  args.top_k_inverse = TopKInverse(args.top_k);
  return LaunchEarly(GroupGemmKernel, args.shares, kGemmThreads, kGemmSharedBytes, stream, args);
}

}  // namespace

int LaunchProducts(const GroupGemmArgs& args, CUstream_st* stream) {
  return Launch(args, 0, 1, stream);
}
int LaunchGateUp(const GroupGemmArgs& args, CUstream_st* stream) {
  return Launch(args, 0, 0, stream);
}
int LaunchDown(const GroupGemmArgs& args, CUstream_st* stream) {
  return Launch(args, 1, 1, stream);
}

int GroupGemmShares() {
  int processors = 0, per_processor = 0;
  if (FindAttribute(cudaDevAttrMultiProcessorCount, &processors) != cudaSuccess ||
      cudaFuncSetAttribute(GroupGemmKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           kGemmSharedBytes) != cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, GroupGemmKernel, kGemmThreads,
                                                    kGemmSharedBytes) != cudaSuccess) {
    return 0;
  }
  const int shares = processors * per_processor;
  return shares < kMaxShares ? shares : kMaxShares;
}

}  // namespace moert::cuda
