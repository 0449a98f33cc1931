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

namespace {

constexpr int kRowsOfCta = kThreads / 32;

/// As moert::offline::Activate. It uses no fast instructions, because differences of its results
/// are taken.
__device__ float Function(const DeviceActivation& a, float x) {
  switch (a.function) {
    case DeviceFunction::kSilu:
      return x / (1.0f + expf(-a.alpha * x));
    case DeviceFunction::kGelu:
      return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case DeviceFunction::kRelu2:
      return x > 0 ? x * x : 0.0f;
    default:
      return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
  }
}

__device__ float Activation(const DeviceActivation& a, float gate, float up) {
  if (a.gated == 0) return Function(a, gate);
  gate = gate > a.limit ? a.limit : gate;
  up = up > a.limit ? a.limit : up < -a.limit ? -a.limit : up;
  return Function(a, gate) * (up + a.up_offset);
}

__global__ void __launch_bounds__(kThreads)
    ActivateKernel(DeviceActivation a, const float* gate, const float* up, const float* less,
                   float* out, int64_t count) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const float h = Activation(a, gate[i], up[i]);
  out[i] = less != nullptr ? h - less[i] : h;
}

__global__ void __launch_bounds__(kThreads)
    SquareSumsKernel(float* rows, const float* less, int64_t count, int64_t columns, double* sums) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t row = int64_t{blockIdx.x} * kRowsOfCta + threadIdx.x / 32;
  if (row >= count) return;
  const int lane = threadIdx.x % 32;
  double sum = 0;
  for (int64_t c = lane; c < columns; c += 32) {
    float v = rows[row * columns + c];
    if (less != nullptr) {
      v -= less[row * columns + c];
      rows[row * columns + c] = v;
    }
    sum += double{v} * double{v};
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
  if (lane == 0) sums[row] = sum;
}

unsigned Ctas(int64_t count, int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

}  // namespace

int LaunchActivate(const DeviceActivation& activation, const float* gate, const float* up,
                   const float* less, float* out, int64_t count, CUstream_st* stream) {
  if (count == 0) return cudaSuccess;
  return LaunchEarly(ActivateKernel, dim3(Ctas(count, kThreads)), kThreads, 0, stream, activation,
                     gate, up, less, out, count);
}

int LaunchSquareSums(float* rows, const float* less, int64_t count, int64_t columns, double* sums,
                     CUstream_st* stream) {
  if (count == 0) return cudaSuccess;
  return LaunchEarly(SquareSumsKernel, dim3(Ctas(count, kRowsOfCta)), kThreads, 0, stream, rows,
                     less, count, columns, sums);
}

}  // namespace moert::cuda
