#include "host/cuda/norm_kernel.h"
#include "host/cuda/norm_row.cuh"
#include "util/launch.cuh"

namespace moert::host {
namespace {

using gpu::GridDependencySync;
using gpu::LaunchEarly;
using gpu::TriggerDependentLaunch;

/// One block per row.
__global__ void __launch_bounds__(kNormThreads) NormKernel(const __grid_constant__ NormArgs a) {
  __shared__ float parts[32];
  TriggerDependentLaunch();
  GridDependencySync();
  NormRow(a, blockIdx.x, parts);
}

}  // namespace

int LaunchNorm(const NormArgs& args, CUstream_st* stream) {
  return LaunchEarly(NormKernel, dim3(args.rows), kNormThreads, 0, stream, args);
}

}  // namespace moert::host
