#include <cuda_runtime.h>

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/route/expert_tiles.cuh"

namespace moert::cuda {
namespace {

/// One CTA, of layers of up to kExperts experts.
template <int kExperts>
__global__ void __launch_bounds__(kTileThreads)
    MakeTilesKernel(const __grid_constant__ MakeTilesArgs args) {
  TriggerDependentLaunch();
  GridDependencySync();
  extern __shared__ __align__(16) uint8_t shared[];
  const auto of = [&](int e) {
    ExpertTokens tokens{};
    if (e > args.experts || !args.wave.Has(e)) return tokens;
    tokens.handle = args.handles[e];
    if (e == args.experts) {
      tokens.count = args.tokens;
      tokens.slots = args.shared_slots;
    } else {
      tokens.count = args.groups.counts[e];
      tokens.slots = args.groups.sorted + args.groups.firsts[e];
    }
    return tokens;
  };
  MakeTiles(args, args.table, of, *reinterpret_cast<TileScratch<kExperts>*>(shared));
}

template <int kExperts>
int LaunchOf(const MakeTilesArgs& args, cudaStream_t stream) {
  constexpr int kBytes = sizeof(TileScratch<kExperts>);
  static_assert(kBytes < kLeastShared);
  const auto kernel = MakeTilesKernel<kExperts>;
  const cudaError_t error =
      kBytes <= 48 << 10
          ? cudaSuccess
          : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  return error != cudaSuccess ? error : LaunchEarly(kernel, 1, kTileThreads, kBytes, stream, args);
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
  return args.experts <= kFewExperts ? LaunchOf<kFewExperts>(args, stream)
                                     : LaunchOf<kMaxExperts>(args, stream);
}

int LaunchUpdateTable(ExpertHandle* table, const TableUpdates& updates, CUstream_st* stream) {
  return LaunchEarly(UpdateTableKernel, 1, TableUpdates::kMax, 0, stream, table, updates);
}

}  // namespace moert::cuda
