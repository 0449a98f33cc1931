// Predictions in launches of their own: beside a host's products, and where routing is not part of
// the decision. Other predictions are made beside a decision, by a second CTA of its launch
// (serve_usual.cu).
#include <cuda_runtime.h>

#include "kernels/cuda/cache/predict_next.cuh"
#include "kernels/cuda/cache/served_prefetch.h"

namespace moert::cuda {
namespace {

template <int kPerLane>
__global__ void __launch_bounds__(kFewExperts, 1)
    PredictRecordsKernel(const __grid_constant__ PredictArgs args) {
  __shared__ PredictScratch scratch;
  PredictNext<kPerLane>(args, nullptr, scratch);
}

}  // namespace

int LaunchPredictRecords(const PredictArgs& args, CUstream_st* stream) {
  const int experts = args.routing.num_experts;
  if (args.tokens > kFewTokens || experts > kFewExperts || args.routing.top_k > kMaxTopK) {
    return cudaErrorInvalidValue;
  }
  const auto kernel = experts <= 64    ? PredictRecordsKernel<2>
                      : experts <= 128 ? PredictRecordsKernel<4>
                      : experts <= 256 ? PredictRecordsKernel<8>
                                       : PredictRecordsKernel<kFewExperts / 32>;
  // No more than it needs, so that it finds room beside the products.
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3((experts + 31) / 32 * 32);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace moert::cuda
