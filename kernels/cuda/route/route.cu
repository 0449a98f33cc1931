// Routing on the device: the experts of every token.
#include <cuda_runtime.h>

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/route/choose_experts.cuh"
#include "kernels/cuda/route/route.h"

namespace moert::cuda {
namespace {

/// A warp a token; at most 32 kPerLane experts.
template <int kPerLane>
__global__ void __launch_bounds__(128)
    TopKKernel(const __grid_constant__ DeviceRouting routing, int tokens, float* logits,
               int32_t* ids, float* weights) {
  TriggerDependentLaunch();
  GridDependencySync();
  __shared__ float group_keys[4][32 * kPerLane], group_ranks[4][32 * kPerLane];
  const int token = blockIdx.x * 4 + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (token >= tokens) return;
  float* const row = logits + static_cast<int64_t>(token) * routing.num_experts;
  const Chosen chosen = ChooseExperts<kPerLane>(
      routing, token, row, {row}, group_keys[threadIdx.x / 32], group_ranks[threadIdx.x / 32]);
  if (ids != nullptr && lane < routing.top_k) {
    const int64_t at = static_cast<int64_t>(token) * routing.top_k + lane;
    ids[at] = chosen.id;
    weights[at] = chosen.weight;
  }
}

}  // namespace

int LaunchTopK(const DeviceRouting& routing, int tokens, float* logits, int32_t* ids,
               float* weights, CUstream_st* stream) {
  const auto kernel = routing.num_experts <= 64    ? TopKKernel<2>
                      : routing.num_experts <= 128 ? TopKKernel<4>
                      : routing.num_experts <= 256 ? TopKKernel<8>
                      : routing.num_experts <= 512 ? TopKKernel<16>
                                                   : TopKKernel<kMaxExperts / 32>;
  return LaunchEarly(kernel, (tokens + 3) / 4, 128, 0, stream, routing, tokens, logits, ids,
                     weights);
}

}  // namespace moert::cuda
