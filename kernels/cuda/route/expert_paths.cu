#include <cuda_runtime.h>

#include "kernels/cuda/primitives/cta_sums.cuh"
#include "kernels/cuda/route/expert_paths.h"
#include "kernels/cuda/route/route.h"

namespace moert::cuda {
namespace {

/// Token by token: who of this layer followed whom of the one before. By all threads.
__device__ __forceinline__ void CountPaths(const ExpertPathsArgs& args, const PathCall& last) {
  const int of_token = last.top_k * args.top_k;
  for (int i = threadIdx.x; i < args.tokens * of_token; i += static_cast<int>(blockDim.x)) {
    const int token = i / of_token, pair = i % of_token;
    const int before = args.last_ids[token * last.top_k + pair / args.top_k];
    const int behind = args.ids[token * args.top_k + pair % args.top_k];
    if (before < 0 || behind < 0) continue;
    float* const row = args.behind + PathFloats(before, args.experts);
    atomicAdd(row + behind, 1.0F);
    atomicAdd(row + args.experts, 1.0F);
  }
}

/// The experts that are active, in ascending order, and how much each of their tokens' paths
/// weighs. How many they are. By all threads.
__device__ __forceinline__ int ListActive(const ExpertPathsArgs& args, int32_t* active,
                                          float* shares) {
  __shared__ Several<int, 1> sums[32];
  const int e = threadIdx.x;
  const int count = e < args.experts ? args.counts[e] : 0;
  Several<int, 1> total;
  const int at = SumBefore(Several<int, 1>{count > 0 ? 1 : 0}, sums, &total).v[0];
  if (count > 0) {
    const float paths = args.paths[PathFloats(e, args.next_experts) + args.next_experts];
    active[at] = e;
    shares[at] = paths == 0 ? 0 : static_cast<float>(count) / paths;
  }
  __syncthreads();
  return total.v[0];
}

/// One CTA: a thread an expert, of this layer and of the next.
__global__ void __launch_bounds__(kFewExperts)
    ExpertPathsKernel(const __grid_constant__ ExpertPathsArgs args) {
  __shared__ int32_t active[kFewExperts];
  __shared__ float shares[kFewExperts];
  const PathCall last = *args.last;
  const int i = threadIdx.x;
  if (args.behind != nullptr && last.layer == args.layer - 1 && last.tokens == args.tokens) {
    CountPaths(args, last);
  }
  const int num_active = args.paths == nullptr ? 0 : ListActive(args, active, shares);
  __syncthreads();  // the last call was read
  for (int p = i; p < args.tokens * args.top_k; p += static_cast<int>(blockDim.x)) {
    args.last_ids[p] = args.ids[p];
  }
  if (i == 0) {
    *args.last = {args.layer, args.tokens, args.top_k, max(1, num_active * args.width / 100)};
  }
  if (i >= args.next_experts) return;
  float score = 0;
  for (int a = 0; a < num_active; ++a) {
    const float* row = args.paths + PathFloats(active[a], args.next_experts);
    score = __fadd_rn(score, __fmul_rn(shares[a], row[i]));  // as on the host
  }
  args.scores[i] = score;
}

}  // namespace

int LaunchExpertPaths(const ExpertPathsArgs& args, CUstream_st* stream) {
  const int experts = args.experts > args.next_experts ? args.experts : args.next_experts;
  if (args.tokens > kFewTokens || args.top_k > kMaxTopK || experts > kFewExperts) {
    return cudaErrorInvalidValue;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3((experts + 31) / 32 * 32);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, ExpertPathsKernel, args);
}

}  // namespace moert::cuda
