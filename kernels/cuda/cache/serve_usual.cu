// The usual call's decision; beside it, by a second CTA that shares nothing with it, what the next
// layer will want.
#include <cuda_runtime.h>

#include "kernels/cuda/cache/call_accounts.cuh"
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
  const Known known = ReadKnown<kPlain>(args);
  const AllAccounts all{args.low.call.accounts, nullptr};
  const bool low = !kPlain && all.low != nullptr;
  if (low) ReadAccounts(all, args.low.call.account_of, route.tokens, accounts);
  GridDependencySync();
  if (route.tokens == 0) return;
  AssumeFew(route);
  const ExpertPairs mine = RouteTokens(route, routed, scratch.route, kept);
  ShareKnown(args, known, scratch.serve);
  const CallPairs<uint16_t> pairs{routed.sorted, routed.firsts};
  DecideCall<kPlain, /*kOneTileEach=*/true>(args, any_args, known, mine.count, pairs,
                                            LowOfCall(args, routed, accounts), scratch.serve);
  if (low && threadIdx.x / 32 == 1) StoreAccounts(all, route.tokens, accounts);
}

}  // namespace

bool IsUsual(const RouteFewArgs& route, const ServeMissesArgs& args) {
  const int pairs = route.tokens * route.routing.top_k;
  return IsUsual(route.routing) && route.given_ids == nullptr && route.tokens <= kTileTokens &&
         pairs <= kUsualThreads && LooksAtAll(pairs, route.routing.num_experts) &&
         args.ids == nullptr && args.makes_tiles != 0 &&
         args.tiles.prompt_packings == 0 && args.lenders.layers <= kUsualThreads;
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

}  // namespace moert::cuda
