// Sets arguments of usual calls' kernels (serve_usual.h) to constants, so that the compiler leaves
// out the code for other calls.
#ifndef MOERT_KERNELS_CUDA_CACHE_USUAL_CALL_CUH_
#define MOERT_KERNELS_CUDA_CACHE_USUAL_CALL_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/cache/predict_next.cuh"
#include "kernels/cuda/cache/serve_call.cuh"
#include "kernels/cuda/cache/serve_usual.h"
#include "kernels/cuda/route/expert_cache.h"
#include "kernels/cuda/route/route_tokens.cuh"

namespace moert::cuda {

constexpr int kUsualPerLane = kUsualExperts / 32;
/// Scores kept in shared memory, [tokens, experts].
constexpr int kUsualScores = kTileTokens * kUsualExperts;
using UsualPairs = RoutedPairs<kUsualThreads>;

__device__ __forceinline__ void KnowUsual(DeviceRouting& routing) {
  routing.kind = routing.kind == DeviceRoutingKind::kTopKSoftmax ? DeviceRoutingKind::kTopKSoftmax
                                                                 : DeviceRoutingKind::kSoftmaxTopK;
  routing.top_groups = routing.num_groups = 1;
  routing.selection_bias = routing.logit_bias = routing.expert_scales = nullptr;
  routing.hash_experts = nullptr;
}
__device__ __forceinline__ RouteFewArgs UsualRoute(RouteFewArgs route) {
  KnowUsual(route.routing);
  route.given_ids = nullptr;
  route.makes_tiles = 0;
  return route;
}
__device__ __forceinline__ ExpertCacheArgs UsualRule(ExpertCacheArgs rule, const float* kept) {
  KnowUsual(rule.routing);
  rule.scores = kept;
  return rule;
}
/// kPlain: as ReadKnown.
template <bool kPlain>
__device__ __forceinline__ ServeMissesArgs UsualServe(ServeMissesArgs args, const float* kept) {
  if (args.scores != nullptr) args.scores = kept;
  args.makes_tiles = 1;
  args.tiles.prompt_packings = 0;
  args.ids = nullptr;
  if (!kPlain) return args;
  args.answers_low = 0;
  args.low = LowVersions{};
  return args;
}
__device__ __forceinline__ PredictArgs UsualNext(PredictArgs next) {
  KnowUsual(next.routing);
  return next;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_USUAL_CALL_CUH_
