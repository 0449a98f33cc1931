// Misses of a call: decided by one CTA, behind its grouping or together with its routing.
#include <cuda_runtime.h>

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/route_tokens.cuh"
#include "kernels/cuda/primitives/serve_call.cuh"
#include "kernels/cuda/serve_misses.h"

namespace moert::cuda {
namespace {

/// Of a multiprocessor, at least. Unsaid, the compiler makes room for two, and spills registers.
constexpr int kCtas = 1;

__global__ void __launch_bounds__(kTileThreads, kCtas)
    ServeMissesKernel(const __grid_constant__ ServeMissesArgs args) {
  TriggerDependentLaunch();
  __shared__ ServeScratch scratch;
  const int e = threadIdx.x;
  const Known known = ReadKnown(args);
  ShareKnown(args, known, scratch);
  GridDependencySync();
  int count = 0;
  if (args.ids != nullptr) {
    CountIds(args, scratch.table.counts);
    if (e < args.experts) count = scratch.table.counts[e];
  } else if (e < args.experts) {
    count = args.counts[e];
  }
  DecideCall(args, known, count, scratch);
}

template <int kPerLane>
__global__ void __launch_bounds__(kTileThreads, kCtas)
    RouteAndServeKernel(const __grid_constant__ RouteFewArgs route,
                        const __grid_constant__ ServeMissesArgs args) {
  TriggerDependentLaunch();
  __shared__ union Scratch {
    __device__ Scratch() {}
    RouteScratch<kPerLane> route;
    ServeScratch serve;
  } scratch;
  const Known known = ReadKnown(args);
  GridDependencySync();
  if (route.tokens == 0) return;
  const ExpertPairs mine = RouteTokens(route, scratch.route);
  ShareKnown(args, known, scratch.serve);
  DecideCall(args, known, mine.count, scratch.serve);
}

}  // namespace

int LaunchServeMisses(const ServeMissesArgs& args, CUstream_st* stream) {
  return LaunchEarly(ServeMissesKernel, 1, kTileThreads, 0, stream, args);
}

int LaunchRouteAndServe(const RouteFewArgs& route, const ServeMissesArgs& args,
                        CUstream_st* stream) {
  const int experts = route.routing.num_experts;
  if (route.tokens > kFewTokens || experts > kFewExperts || route.routing.top_k > kMaxTopK) {
    return cudaErrorInvalidValue;
  }
  const auto kernel = experts <= 64    ? RouteAndServeKernel<2>
                      : experts <= 128 ? RouteAndServeKernel<4>
                      : experts <= 256 ? RouteAndServeKernel<8>
                                       : RouteAndServeKernel<kFewExperts / 32>;
  return LaunchEarly(kernel, 1, kTileThreads, 0, stream, route, args);
}

}  // namespace moert::cuda
