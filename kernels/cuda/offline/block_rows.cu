#include "kernels/cuda/offline/block_rows.h"
#include "kernels/cuda/primitives/launch.cuh"

namespace moert::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostCtas = int64_t{1} << 20;

__global__ void __launch_bounds__(kThreads)
    WidenKernel(const uint16_t* from, int64_t count, float* to) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    to[i] = __uint_as_float(static_cast<uint32_t>(from[i]) << 16);
  }
}

// A CTA a row.
__global__ void __launch_bounds__(kThreads)
    GatherRowsKernel(const float* from, const int32_t* rows, int64_t first, int64_t columns,
                     float* to) {
  TriggerDependentLaunch();
  GridDependencySync();
  const float* const source = from + (rows[blockIdx.x] - first) * columns;
  float* const target = to + int64_t{blockIdx.x} * columns;
  for (int64_t c = threadIdx.x; c < columns; c += kThreads) target[c] = source[c];
}

__global__ void __launch_bounds__(kThreads)
    AddRowsKernel(const float* from, const int32_t* rows, const float* weights, int64_t first,
                  int64_t columns, float* to) {
  TriggerDependentLaunch();
  GridDependencySync();
  const float weight = weights[blockIdx.x];
  const float* const source = from + int64_t{blockIdx.x} * columns;
  float* const target = to + (rows[blockIdx.x] - first) * columns;
  for (int64_t c = threadIdx.x; c < columns; c += kThreads) {
    target[c] = __fadd_rn(target[c], __fmul_rn(weight, source[c]));
  }
}

}  // namespace

int LaunchWiden(const uint16_t* from, int64_t count, float* to, CUstream_st* stream) {
  if (count == 0) return cudaSuccess;
  const int64_t ctas = (count + kThreads - 1) / kThreads;
  return LaunchEarly(WidenKernel, dim3(static_cast<unsigned>(ctas < kMostCtas ? ctas : kMostCtas)),
                     kThreads, 0, stream, from, count, to);
}

int LaunchGatherRows(const float* from, const int32_t* rows, int64_t first, int64_t count,
                     int64_t columns, float* to, CUstream_st* stream) {
  if (count == 0) return cudaSuccess;
  return LaunchEarly(GatherRowsKernel, dim3(static_cast<unsigned>(count)), kThreads, 0, stream,
                     from, rows, first, columns, to);
}

int LaunchAddRows(const float* from, const int32_t* rows, const float* weights, int64_t first,
                  int64_t count, int64_t columns, float* to, CUstream_st* stream) {
  if (count == 0) return cudaSuccess;
  return LaunchEarly(AddRowsKernel, dim3(static_cast<unsigned>(count)), kThreads, 0, stream, from,
                     rows, weights, first, columns, to);
}

}  // namespace moert::cuda
