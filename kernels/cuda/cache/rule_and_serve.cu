// The expert-cache rule between the routing of few tokens and the decision about their misses, by
// the same CTA.
#include <cuda_runtime.h>

#include "kernels/cuda/cache/rule_call.cuh"
#include "kernels/cuda/cache/serve_usual.h"
#include "kernels/cuda/primitives/launch.cuh"

namespace moert::cuda {
namespace {

template <int kPerLane>
__global__ void __launch_bounds__(kTileThreads, 1)
    RuleAndServeKernel(const __grid_constant__ RouteFewArgs route,
                       const __grid_constant__ ExpertCacheArgs rule,
                       const __grid_constant__ ServeMissesArgs args) {
  constexpr int kWarps = kPerLane <= 4 ? 16 : 64 / kPerLane;
  TriggerDependentLaunch();
  __shared__ RoutedPairs<> routed;
  __shared__ CallAccounts accounts;
  __shared__ Marks marks;
  __shared__ union Scratch {
    __device__ Scratch() {}
    RouteScratch<kPerLane> route;
    RuleScratch<kPerLane, kWarps> rule;
    ServeScratch serve;
  } scratch;
  const CallRule<kPerLane, kWarps> of_call{rule, marks, scratch.rule};
  RouteAndServe</*kPlain=*/false, /*kOneTileEach=*/false>(route, of_call, args, args, nullptr,
                                                          routed, accounts, scratch);
}

}  // namespace

int LaunchRuleAndServe(const RouteFewArgs& route, const ExpertCacheArgs& rule,
                       const ServeMissesArgs& args, CUstream_st* stream, const PredictArgs* next) {
  if (IsUsual(route, args)) return LaunchRuleUsual(route, rule, args, next, stream);
  if (next != nullptr) return cudaErrorInvalidValue;
  const int experts = route.routing.num_experts;
  if (route.tokens > kFewTokens || experts > kFewExperts || route.routing.top_k > kMaxTopK) {
    return cudaErrorInvalidValue;
  }
  const auto kernel = experts <= 128   ? RuleAndServeKernel<4>
                      : experts <= 256 ? RuleAndServeKernel<8>
                                       : RuleAndServeKernel<kFewExperts / 32>;
  return LaunchEarly(kernel, 1, kTileThreads, 0, stream, route, rule, args);
}

}  // namespace moert::cuda
