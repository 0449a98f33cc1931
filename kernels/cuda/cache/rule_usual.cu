// The usual call's decision with the expert-cache rule in front of it; beside it, by a second CTA,
// what the next layer will want.
#include <cuda_runtime.h>

#include "kernels/cuda/cache/rule_call.cuh"
#include "kernels/cuda/cache/serve_usual.h"
#include "kernels/cuda/cache/usual_call.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace moert::cuda {
namespace {

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
  AssumeFew(route);
  RuleAndServe</*kOneTileEach=*/true>(route, UsualRule(any_rule, kept),
                                      UsualServe</*kPlain=*/false>(any_args, kept), any_args, kept,
                                      routed, accounts, marks, scratch);
}

}  // namespace

int LaunchRuleUsual(const RouteFewArgs& route, const ExpertCacheArgs& rule,
                    const ServeMissesArgs& args, const PredictArgs* next, CUstream_st* stream) {
  if (next != nullptr && !PredictsBeside(route, args, *next)) return cudaErrorInvalidValue;
  return LaunchEarly(RuleUsualKernel, next != nullptr ? 2 : 1, kUsualThreads, 0, stream, route,
                     rule, args, next != nullptr ? *next : PredictArgs{});
}

}  // namespace moert::cuda
