#include "host/cuda/output_gate_kernel.h"
#include "host/cuda/reduce.cuh"
#include "util/launch.cuh"

namespace moert::host {
namespace {

using gpu::GridDependencySync;
using gpu::LaunchEarly;
using gpu::TriggerDependentLaunch;

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) OutputGateKernel(const __grid_constant__ OutputGate a) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t row = blockIdx.x;
  const int i = blockIdx.y * kThreads + threadIdx.x;
  if (i >= a.width) return;
  float gate = a.gates[row * a.stride + i];
  if (a.bias != nullptr) gate += a.bias[i];
  uint16_t* const y = a.mixed + row * a.width + i;
  *y = ToBf16(FromBf16(*y) / (1.0f + expf(-gate)));
}

}  // namespace

int LaunchOutputGate(const OutputGate& args, CUstream_st* stream) {
  const dim3 grid(args.rows, (args.width + kThreads - 1) / kThreads);
  return LaunchEarly(OutputGateKernel, grid, kThreads, 0, stream, args);
}

}  // namespace moert::host
