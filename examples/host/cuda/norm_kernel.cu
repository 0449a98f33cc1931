#include "host/cuda/norm_kernel.h"
#include "host/cuda/reduce.cuh"
#include "util/launch.cuh"

namespace moert::host {
namespace {

using gpu::GridDependencySync;
using gpu::LaunchEarly;
using gpu::TriggerDependentLaunch;

/// A block a row. A thread reads back only what it wrote itself.
__global__ void NormKernel(const __grid_constant__ NormArgs a) {
  __shared__ float parts[32];
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * a.width;
  float* x = a.residual + at;
  const int width = a.width, step = static_cast<int>(blockDim.x);
  float sum = 0, squares = 0;
  for (int i = threadIdx.x; i < width; i += step) {
    float v = x[i];
    if (a.delta != nullptr) x[i] = v += a.delta[at + i];
    sum += v;
    squares += v * v;
  }
  float mean = 0;
  if (a.bias != nullptr) {
    mean = BlockSum(sum, parts) / static_cast<float>(width);
    squares = 0;
    for (int i = threadIdx.x; i < width; i += step) squares += (x[i] - mean) * (x[i] - mean);
  }
  const float variance = BlockSum(squares, parts) / static_cast<float>(width);
  const float scale = 1.0f / sqrtf(variance + a.eps);
  for (int i = threadIdx.x; i < width; i += step) {
    float y = (x[i] - mean) * scale * a.weight[i];
    if (a.bias != nullptr) y += a.bias[i];
    if (a.f32 != nullptr) a.f32[at + i] = y;
    if (a.bf16 != nullptr) a.bf16[at + i] = ToBf16(y);
  }
}

}  // namespace

int LaunchNorm(const NormArgs& args, CUstream_st* stream) {
  const int threads = args.width <= 128 ? 128 : args.width <= 1024 ? 256 : 512;
  return LaunchEarly(NormKernel, dim3(args.rows), threads, 0, stream, args);
}

}  // namespace moert::host
