// The decision of a usual call in a kernel of its own. A usual call has few tokens, routed by
// softmax among at most kUsualExperts experts, which leave by any of the three rules of
// serve_misses.h.
//
// It is the same code as for other calls (cache/serve_call.cuh), without what such a call never
// does. The kernel runs once per layer, in one CTA, and ends the sooner the less code it has. With
// fewer threads it fits beside the CTAs of the gate's logits, so it can begin while they run.
#ifndef MOERT_KERNELS_CUDA_CACHE_SERVE_USUAL_H_
#define MOERT_KERNELS_CUDA_CACHE_SERVE_USUAL_H_

#include "kernels/cuda/cache/serve_misses.h"
#include "kernels/cuda/route/expert_cache.h"

namespace moert::cuda {

constexpr int kUsualExperts = 128;
constexpr int kUsualThreads = 256;

bool IsUsual(const RouteFewArgs& route, const ServeMissesArgs& args);
/// Launches such a call, as LaunchRouteAndServe and LaunchRuleAndServe do. Returns 0 or a
/// cudaError_t.
int LaunchServeUsual(const RouteFewArgs& route, const ServeMissesArgs& args,
                     const PredictArgs* next, CUstream_st* stream);
int LaunchRuleUsual(const RouteFewArgs& route, const ExpertCacheArgs& rule,
                    const ServeMissesArgs& args, const PredictArgs* next, CUstream_st* stream);

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_SERVE_USUAL_H_
