// The decision about the misses of a call, by one CTA: after the call's grouping, together with its
// routing, or for a call that the host multiplies.
#include <cuda_runtime.h>

#include "kernels/cuda/cache/host_call.cuh"
#include "kernels/cuda/cache/rule_call.cuh"
#include "kernels/cuda/cache/serve_misses.h"
#include "kernels/cuda/cache/serve_usual.h"
#include "kernels/cuda/primitives/launch.cuh"

namespace moert::cuda {
namespace {

/// The minimum number of CTAs per multiprocessor. Without it, the compiler makes room for two and
/// spills registers.
constexpr int kCtas = 1;

__global__ void __launch_bounds__(kTileThreads, kCtas)
    ServeMissesKernel(const __grid_constant__ ServeMissesArgs args) {
  TriggerDependentLaunch();
  __shared__ ServeScratch scratch;
  const Known known = ReadKnown</*kPlain=*/false>(args);
  ShareKnown(args, known, scratch.table);
  GridDependencySync();
  const int count = threadIdx.x < args.experts ? args.counts[threadIdx.x] : 0;
  const CallPairs<int32_t> pairs{args.groups.sorted, args.groups.firsts};
  DecideCall</*kPlain=*/false>(args, args, known, count, pairs, args.low.call, scratch);
}

__global__ void __launch_bounds__(kTileThreads, kCtas)
    ServeHostCallKernel(const __grid_constant__ ServeMissesArgs any_args) {
  TriggerDependentLaunch();
  __shared__ ServeTable table;
  DecideHostCall(HostCallOf(any_args), any_args, table);
}

template <int kPerLane>
__global__ void __launch_bounds__(kTileThreads, kCtas)
    RouteAndServeKernel(const __grid_constant__ RouteFewArgs route,
                        const __grid_constant__ ServeMissesArgs args) {
  TriggerDependentLaunch();
  __shared__ RoutedPairs<> routed;
  __shared__ CallAccounts accounts;
  __shared__ union Scratch {
    __device__ Scratch() {}
    RouteScratch<kPerLane> route;
    ServeScratch serve;
  } scratch;
  RouteAndServe</*kPlain=*/false, /*kOneTileEach=*/false>(route, NoCallRule{}, args, args, nullptr,
                                                          routed, accounts, scratch);
}

}  // namespace

int LaunchServeMisses(const ServeMissesArgs& args, CUstream_st* stream) {
  if (args.ids != nullptr) {
    return LaunchEarly(ServeHostCallKernel, 1, HostCallThreads(args.experts), 0, stream, args);
  }
  return LaunchEarly(ServeMissesKernel, 1, kTileThreads, 0, stream, args);
}

int LaunchRouteAndServe(const RouteFewArgs& route, const ServeMissesArgs& args, CUstream_st* stream,
                        const PredictArgs* next) {
  if (IsUsual(route, args)) return LaunchServeUsual(route, args, next, stream);
  if (next != nullptr) return cudaErrorInvalidValue;
  const int experts = route.routing.num_experts;
  if (route.tokens > kFewTokens || experts > kFewExperts || route.routing.top_k > kMaxTopK) {
    return cudaErrorInvalidValue;
  }
  const auto kernel = experts <= 128   ? RouteAndServeKernel<4>
                      : experts <= 256 ? RouteAndServeKernel<8>
                                       : RouteAndServeKernel<kFewExperts / 32>;
  return LaunchEarly(kernel, 1, kTileThreads, 0, stream, route, args);
}

}  // namespace moert::cuda
