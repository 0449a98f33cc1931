// Few tokens: one CTA chooses the experts of every token, groups tokens by expert and makes the
// tiles of the products.
#include <cuda_runtime.h>

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/route/expert_tiles.cuh"
#include "kernels/cuda/route/route_tokens.cuh"

namespace moert::cuda {
namespace {

/// Prefetches the experts' formats into L1, since making tiles reads them at once.
__device__ __forceinline__ void PrefetchFormats(const MakeTilesArgs& tiles) {
  for (int e = threadIdx.x % 32; e <= tiles.experts; e += 32) {
    PrefetchFormat(tiles.formats + tiles.handles[e].format);
  }
}

/// One CTA per multiprocessor: without this bound, the compiler makes room for two and spills
/// registers.
template <int kPerLane>
__global__ void __launch_bounds__(kTileThreads, 1)
    RouteFewKernel(const __grid_constant__ RouteFewArgs args) {
  TriggerDependentLaunch();
  __shared__ RoutedPairs<> routed;
  __shared__ union Scratch {
    __device__ Scratch() {}
    RouteScratch<kPerLane> route;
    TileScratch<kFewExperts> tiles;
  } scratch;
  const int e = threadIdx.x;
  const int experts = args.routing.num_experts;
  GridDependencySync();
  ExpertHandle handle{};  // loads while experts are chosen
  if (args.makes_tiles && e <= experts && args.tiles.wave.Has(e)) handle = args.tiles.handles[e];
  constexpr int kLastWarp = kTileThreads / 32 - 1;
  static_assert(RouteScratch<kPerLane>::kWarps <= kLastWarp);
  if (args.makes_tiles && threadIdx.x / 32 == kLastWarp) PrefetchFormats(args.tiles);
  const ExpertPairs mine = RouteTokens(args, routed, scratch.route);
  if (args.makes_tiles == 0) return;
  const bool shared = e == experts;
  const ExpertTokens tokens{handle, shared ? args.tokens : mine.count,
                            shared ? args.shared_slots : args.groups.sorted + mine.first};
  MakeTiles(
      args.tiles, args.tiles.table, [&](int) { return tokens; }, scratch.tiles);
}

}  // namespace

int LaunchRouteFew(const RouteFewArgs& args, CUstream_st* stream) {
  if (args.tokens > kFewTokens || args.routing.num_experts > kFewExperts ||
      args.routing.top_k > kMaxTopK) {
    return cudaErrorInvalidValue;
  }
  const int experts = args.routing.num_experts;
  const auto kernel = experts <= 64    ? RouteFewKernel<2>
                      : experts <= 128 ? RouteFewKernel<4>
                      : experts <= 256 ? RouteFewKernel<8>
                                       : RouteFewKernel<kFewExperts / 32>;
  return LaunchEarly(kernel, 1, kTileThreads, 0, stream, args);
}

}  // namespace moert::cuda
