// Misses of a call: decided by one CTA, behind its grouping or together with its routing.
#include <cuda_runtime.h>

#include "kernels/cuda/cache/call_accounts.cuh"
#include "kernels/cuda/cache/serve_call.cuh"
#include "kernels/cuda/cache/serve_misses.h"
#include "kernels/cuda/cache/serve_usual.h"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/route/route_tokens.cuh"

namespace moert::cuda {
namespace {

/// The least number of CTAs of a multiprocessor. Unsaid, the compiler makes room for two, and
/// spills registers.
constexpr int kCtas = 1;

__global__ void __launch_bounds__(kTileThreads, kCtas)
    ServeMissesKernel(const __grid_constant__ ServeMissesArgs args) {
  TriggerDependentLaunch();
  __shared__ ServeScratch scratch;
  const int e = threadIdx.x;
  const Known known = ReadKnown</*kPlain=*/false>(args);
  ShareKnown(args, known, scratch);
  GridDependencySync();
  int count = 0;
  if (args.ids != nullptr) {
    CountIds(args, scratch.table.counts);
    if (e < args.experts) count = scratch.table.counts[e];
  } else if (e < args.experts) {
    count = args.counts[e];
  }
  const CallPairs<int32_t> pairs{args.groups.sorted, args.groups.firsts};
  DecideCall</*kPlain=*/false>(args, args, known, count, pairs, args.low.call, scratch);
}

template <int kPerLane, bool kPlain>
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
  const Known known = ReadKnown<kPlain>(args);
  const AllAccounts all{args.low.call.accounts, nullptr};
  const bool low = !kPlain && all.low != nullptr;
  if (low) ReadAccounts(all, args.low.call.account_of, route.tokens, accounts);
  GridDependencySync();
  if (route.tokens == 0) return;
  const ExpertPairs mine = RouteTokens(route, routed, scratch.route);
  ShareKnown(args, known, scratch.serve);
  const CallPairs<uint16_t> pairs{routed.sorted, routed.firsts};
  DecideCall<kPlain>(args, args, known, mine.count, pairs, LowOfCall(args, routed, accounts),
                     scratch.serve);
  if (low && threadIdx.x / 32 == 1) StoreAccounts(all, route.tokens, accounts);
}

template <int kPerLane>
auto KernelOf(const ServeMissesArgs& args) {
  return args.answers_low == 0 ? RouteAndServeKernel<kPerLane, true>
                               : RouteAndServeKernel<kPerLane, false>;
}

}  // namespace

int LaunchServeMisses(const ServeMissesArgs& args, CUstream_st* stream) {
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
  const auto kernel = experts <= 128   ? KernelOf<4>(args)
                      : experts <= 256 ? KernelOf<8>(args)
                                       : KernelOf<kFewExperts / 32>(args);
  return LaunchEarly(kernel, 1, kTileThreads, 0, stream, route, args);
}

}  // namespace moert::cuda
