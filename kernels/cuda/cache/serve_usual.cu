// The decision of a usual call, with or without the expert-cache rule before it. A second CTA,
// which shares nothing with the first, predicts what the next layer will want.
#include <cuda_runtime.h>

#include "kernels/cuda/cache/rule_call.cuh"
#include "kernels/cuda/cache/serve_usual.h"
#include "kernels/cuda/cache/usual_call.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace moert::cuda {
namespace {

bool IsUsual(const DeviceRouting& routing) {
  return (routing.kind == DeviceRoutingKind::kSoftmaxTopK ||
          routing.kind == DeviceRoutingKind::kTopKSoftmax) &&
         routing.num_experts <= kUsualExperts && routing.top_k <= kMaxTopK &&
         routing.top_groups == routing.num_groups && routing.selection_bias == nullptr &&
         routing.logit_bias == nullptr && routing.expert_scales == nullptr &&
         routing.hash_experts == nullptr;
}

template <bool kPlain>
__global__ void __launch_bounds__(kUsualThreads, 1)
    ServeUsualKernel(const __grid_constant__ RouteFewArgs any_route,
                     const __grid_constant__ ServeMissesArgs any_args,
                     const __grid_constant__ PredictArgs next) {
  TriggerDependentLaunch();
  __shared__ UsualPairs routed;
  __shared__ float kept[kUsualScores];
  __shared__ CallAccounts accounts;
  __shared__ union Scratch {
    __device__ Scratch() {}
    RouteScratch<kUsualPerLane> route;
    ServeScratch serve;
    PredictScratch predict;
  } scratch;
  if (blockIdx.x > 0) {
    PredictNext<kUsualPerLane>(UsualNext(next), kept, scratch.predict);
    return;
  }
  const RouteFewArgs route = UsualRoute(any_route);
  const ServeMissesArgs args = UsualServe<kPlain>(any_args, kept);
  RouteAndServe<kPlain, /*kOneTileEach=*/true>(route, NoCallRule{}, args, any_args, kept, routed,
                                               accounts, scratch);
}

__global__ void __launch_bounds__(kUsualThreads, 1)
    RuleUsualKernel(const __grid_constant__ RouteFewArgs any_route,
                    const __grid_constant__ ExpertCacheArgs any_rule,
                    const __grid_constant__ ServeMissesArgs any_args,
                    const __grid_constant__ PredictArgs next) {
  TriggerDependentLaunch();
  __shared__ UsualPairs routed;
  __shared__ float kept[kUsualScores];
  __shared__ CallAccounts accounts;
  __shared__ Marks marks;
  __shared__ union Scratch {
    __device__ Scratch() {}
    RouteScratch<kUsualPerLane> route;
    RuleScratch<kUsualPerLane, kUsualThreads / 32> rule;
    ServeScratch serve;
    PredictScratch predict;
  } scratch;
  if (blockIdx.x > 0) {
    PredictNext<kUsualPerLane>(UsualNext(next), kept, scratch.predict);
    return;
  }
  const RouteFewArgs route = UsualRoute(any_route);
  const ExpertCacheArgs rule = UsualRule(any_rule, kept);
  const CallRule<kUsualPerLane, kUsualThreads / 32> of_call{rule, marks, scratch.rule};
  RouteAndServe</*kPlain=*/false, /*kOneTileEach=*/true>(
      route, of_call, UsualServe</*kPlain=*/false>(any_args, kept), any_args, kept, routed,
      accounts, scratch);
}

}  // namespace

bool IsUsual(const RouteFewArgs& route, const ServeMissesArgs& args) {
  const int pairs = route.tokens * route.routing.top_k;
  return IsUsual(route.routing) && route.given_ids == nullptr && route.tokens <= kTileTokens &&
         pairs <= kUsualThreads && LooksAtAll(pairs, route.routing.num_experts) &&
         args.ids == nullptr && args.makes_tiles != 0 && args.tiles.prompt_packings == 0 &&
         args.lenders.layers <= kUsualThreads;
}

bool PredictsBeside(const RouteFewArgs& route, const ServeMissesArgs& args,
                    const PredictArgs& next) {
  return IsUsual(route, args) && IsUsual(next.routing) &&
         next.tokens * next.routing.num_experts <= kUsualScores;
}

int LaunchServeUsual(const RouteFewArgs& route, const ServeMissesArgs& args,
                     const PredictArgs* next, CUstream_st* stream) {
  if (next != nullptr && !PredictsBeside(route, args, *next)) return cudaErrorInvalidValue;
  return LaunchEarly(args.answers_low == 0 ? ServeUsualKernel<true> : ServeUsualKernel<false>,
                     next != nullptr ? 2 : 1, kUsualThreads, 0, stream, route, args,
                     next != nullptr ? *next : PredictArgs{});
}

int LaunchRuleUsual(const RouteFewArgs& route, const ExpertCacheArgs& rule,
                    const ServeMissesArgs& args, const PredictArgs* next, CUstream_st* stream) {
  if (next != nullptr && !PredictsBeside(route, args, *next)) return cudaErrorInvalidValue;
  return LaunchEarly(RuleUsualKernel, next != nullptr ? 2 : 1, kUsualThreads, 0, stream, route,
                     rule, args, next != nullptr ? *next : PredictArgs{});
}

}  // namespace moert::cuda
