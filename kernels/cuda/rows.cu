#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/primitives/activation.cuh"
#include "kernels/cuda/primitives/element.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/quantize_rows.h"
#include "kernels/cuda/rows.h"

namespace moert::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void PackRowsKernel(const T* x, int cols, int64_t x_stride, uint8_t* packed,
                               int64_t stride) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t row = blockIdx.x;
  // A thread fills 4 elements that lie together: a unit.
  const int i = blockIdx.y * kThreads + threadIdx.x;
  if (i * 8 < OperandScales(cols)) {
    const int base = i / 4 * 16 + (i & 3) * 2;
    const int channel[4] = {base, base + 1, base + 8, base + 9};
    uint16_t v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      v[j] = channel[j] < cols ? ToBf16(ToFloat(x[row * x_stride + channel[j]])) : uint16_t{0};
    }
    *reinterpret_cast<ushort4*>(packed + row * stride + i * 8) =
        make_ushort4(v[0], v[1], v[2], v[3]);
  }
}

/// A CTA a token and kThreads channels.
template <typename In, typename Out>
__global__ void CombineKernel(const __grid_constant__ CombineArgs args) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t token = blockIdx.x;
  const int hidden = args.x.cols;
  const In* x = static_cast<const In*>(args.x.data) + token * args.x.stride;
  float shared_weight = 1;
  if (args.shared && args.shared_gate != nullptr) {
    __shared__ float parts[kThreads / 32];
    float dot = 0;
#pragma unroll 8
    for (int i = threadIdx.x; i < hidden; i += kThreads) dot += ToFloat(x[i]) * args.shared_gate[i];
    dot = WarpSum(dot);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = dot;
    __syncthreads();
    dot = 0;
    for (int w = 0; w < kThreads / 32; ++w) dot += parts[w];
    shared_weight = 1 / (1 + expf(-dot));
  }
  const int i = blockIdx.y * kThreads + threadIdx.x;
  if (i >= hidden) return;
  const float* slots = args.slots + token * args.top_k * args.slot_stride + i;
  const float* weights = args.weights + token * args.top_k;
  float shared = 0;
  if (args.shared) {
    shared =
        args.slots[(static_cast<int64_t>(gridDim.x) * args.top_k + token) * args.slot_stride + i];
  }
  float sum = 0;
  constexpr int kAtOnce = 8;
  for (int base = 0; base < args.top_k; base += kAtOnce) {
    float v[kAtOnce], w[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int at = min(base + j, args.top_k - 1);
      v[j] = slots[at * args.slot_stride];
      w[j] = weights[at];
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (base + j < args.top_k) sum = base + j == 0 ? w[j] * v[j] : fmaf(w[j], v[j], sum);
    }
  }
  if (args.shared) sum = fmaf(shared_weight, shared, sum);
  static_cast<Out*>(args.out)[token * args.out_stride + i] = FromFloat<Out>(sum);
}

constexpr int kPlaceEach = 4;  // of a thread, all under way at once: host memory is far

__global__ void PlaceRowsKernel(const float* rows, const int32_t* where, int cols, float* slots,
                                int64_t slot_stride) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t row = blockIdx.x;
  const int first = blockIdx.y * kThreads * kPlaceEach + threadIdx.x;
  float v[kPlaceEach];
#pragma unroll
  for (int j = 0; j < kPlaceEach; ++j) {
    const int i = first + j * kThreads;
    v[j] = i < cols ? rows[row * cols + i] : 0.0f;
  }
  float* to = slots + where[row] * slot_stride;
#pragma unroll
  for (int j = 0; j < kPlaceEach; ++j) {
    const int i = first + j * kThreads;
    if (i < cols) to[i] = v[j];
  }
}

template <typename T>
using Element = std::remove_const_t<std::remove_pointer_t<T>>;

}  // namespace

int LaunchPackRows(const DeviceRows& x, int operand, uint8_t* packed, int64_t stride,
                   CUstream_st* stream) {
  if (operand != 0) return LaunchPackOperand(x, operand, packed, stride, stream);
  int error = 0;
  WithElement(x.dtype, [&](auto type) {
    using T = Element<decltype(type)>;
    const auto units = static_cast<unsigned>(OperandScales(x.cols) / 8);
    const dim3 grid(x.rows, (units + kThreads - 1) / kThreads);
    error = LaunchEarly(PackRowsKernel<T>, grid, kThreads, 0, stream, static_cast<const T*>(x.data),
                        x.cols, x.stride, packed, stride);
  });
  return error;
}

int LaunchCombine(const CombineArgs& args, CUstream_st* stream) {
  const dim3 grid(args.x.rows, (args.x.cols + kThreads - 1) / kThreads);
  int error = 0;
  WithElement(args.x.dtype, [&](auto in) {
    WithElement(args.out_dtype, [&](auto out) {
      error = LaunchEarly(CombineKernel<Element<decltype(in)>, Element<decltype(out)>>, grid,
                          kThreads, 0, stream, args);
    });
  });
  return error;
}

int LaunchPlaceRows(const float* rows, const int32_t* where, int count, int cols, float* slots,
                    int64_t slot_stride, CUstream_st* stream) {
  if (count == 0) return 0;
  constexpr int kWide = kThreads * kPlaceEach;
  const dim3 grid(count, (cols + kWide - 1) / kWide);
  return LaunchEarly(PlaceRowsKernel, grid, kThreads, 0, stream, rows, where, cols, slots,
                     slot_stride);
}

}  // namespace moert::cuda
