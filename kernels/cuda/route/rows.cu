#include <cuda_runtime.h>

#include "kernels/cuda/few/pack_unit.cuh"
#include "kernels/cuda/primitives/activation.cuh"
#include "kernels/cuda/primitives/element.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/route/rows.h"
#include "kernels/cuda/route/weighted_row.cuh"

namespace moert::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void PackRowsKernel(const T* x, int cols, int64_t x_stride, uint8_t* packed,
                               int64_t stride, RowWeights weights) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t row = blockIdx.x;
  PackUnit(WeightedRow<T>(x, x_stride, weights, blockIdx.x), cols,
           blockIdx.y * kThreads + threadIdx.x, packed + row * stride);
}

/// A thread rounds 8 channels.
template <typename T>
__global__ void RoundRowsKernel(const T* x, int cols, int64_t x_stride, uint8_t* rounded,
                                int64_t stride, RowWeights weights) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t row = blockIdx.x;
  const int first = (blockIdx.y * kThreads + threadIdx.x) * 8;
  if (first >= (cols + 63) / 64 * 64) return;
  const WeightedRow<T> of(x, x_stride, weights, blockIdx.x);
  const T* from = of.at + first;
  T v[8];
  if (first + 8 <= cols && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T)) / 2; ++i) {
      reinterpret_cast<uint4*>(v)[i] = reinterpret_cast<const uint4*>(from)[i];
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = first + i < cols ? from[i] : FromFloat<T>(0);
  }
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[i] = ToBf16(of.weight * ToFloat(v[2 * i])) |
               uint32_t{ToBf16(of.weight * ToFloat(v[2 * i + 1]))} << 16;
  }
  *reinterpret_cast<uint4*>(rounded + row * stride + first * 2) =
      make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

/// sigmoid(gate . x) of a row, by all threads of a CTA.
template <typename In>
__device__ float SharedWeight(const In* x, const float* gate, int hidden) {
  __shared__ float parts[kThreads / 32];
  float dot = 0;
#pragma unroll 8
  for (int i = threadIdx.x; i < hidden; i += kThreads) dot += ToFloat(x[i]) * gate[i];
  dot = WarpSum(dot);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = dot;
  __syncthreads();
  dot = 0;
  for (int w = 0; w < kThreads / 32; ++w) dot += parts[w];
  return 1 / (1 + expf(-dot));
}

/// Slots of bf16. A CTA a token and 8 kThreads channels, 8 a thread.
template <typename In, typename Out, bool kAbsent>
__global__ void __launch_bounds__(kThreads)
    CombineNarrowKernel(const __grid_constant__ CombineArgs args) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t token = blockIdx.x;
  const int hidden = args.x.cols;
  float shared_weight = 1;
  if (args.shared && args.shared_gate != nullptr) {
    shared_weight = SharedWeight(static_cast<const In*>(args.x.data) + token * args.x.stride,
                                 args.shared_gate, hidden);
  }
  const int first = (blockIdx.y * kThreads + threadIdx.x) * 8;
  if (first >= hidden) return;
  const auto* all = static_cast<const uint16_t*>(args.slots) + first;
  const uint16_t* slots = all + token * args.top_k * args.slot_stride;
  const float* weights = args.weights + token * args.top_k;
  const int32_t* ids = kAbsent ? args.ids + token * args.top_k : nullptr;
  float sum[8] = {};
  const auto add = [&](const uint4& v, float w) {
    const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum[2 * i] = fmaf(w, __uint_as_float(pairs[i] << 16), sum[2 * i]);
      sum[2 * i + 1] = fmaf(w, __uint_as_float(pairs[i] & 0xffff0000u), sum[2 * i + 1]);
    }
  };
  constexpr int kAtOnce = 8;
  for (int base = 0; base < args.top_k; base += kAtOnce) {
    uint4 v[kAtOnce];
    float w[kAtOnce];
    bool here[kAtOnce];  // slots that were not computed are not read: a shard has few of them
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      here[j] = base + j < args.top_k && (!kAbsent || ids[base + j] >= 0);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int at = min(base + j, args.top_k - 1);
      v[j] = make_uint4(0, 0, 0, 0);
      if (!kAbsent || here[j]) {
        v[j] = *reinterpret_cast<const uint4*>(slots + at * args.slot_stride);
      }
      w[j] = weights[at];
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (here[j]) add(v[j], w[j]);
    }
  }
  if (args.shared) {
    const int64_t slot = static_cast<int64_t>(gridDim.x) * args.top_k + token;
    add(*reinterpret_cast<const uint4*>(all + slot * args.slot_stride), shared_weight);
  }
  StoreEight(sum, hidden - first, static_cast<Out*>(args.out) + token * args.out_stride + first);
}

/// A CTA a token and kThreads channels.
template <typename In, typename Out, bool kAbsent>
__global__ void CombineKernel(const __grid_constant__ CombineArgs args) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t token = blockIdx.x;
  const int hidden = args.x.cols;
  const In* x = static_cast<const In*>(args.x.data) + token * args.x.stride;
  float shared_weight = 1;
  if (args.shared && args.shared_gate != nullptr) {
    shared_weight = SharedWeight(x, args.shared_gate, hidden);
  }
  const int i = blockIdx.y * kThreads + threadIdx.x;
  if (i >= hidden) return;
  const auto* all = static_cast<const float*>(args.slots);
  const float* slots = all + token * args.top_k * args.slot_stride + i;
  const float* weights = args.weights + token * args.top_k;
  const int32_t* ids = kAbsent ? args.ids + token * args.top_k : nullptr;
  float shared = 0;
  if (args.shared) {
    shared = all[(static_cast<int64_t>(gridDim.x) * args.top_k + token) * args.slot_stride + i];
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
      if (kAbsent && base + j < args.top_k && ids[base + j] < 0) continue;
      // From a sum of 0 fmaf gives the same bits, but for the sign of a zero.
      if (base + j < args.top_k) sum = base + j == 0 ? w[j] * v[j] : fmaf(w[j], v[j], sum);
    }
  }
  if (args.shared) sum = fmaf(shared_weight, shared, sum);
  static_cast<Out*>(args.out)[token * args.out_stride + i] = FromFloat<Out>(sum);
}

__global__ void AdoptRoutingKernel(const int32_t* in_ids, const float* in_weights, int pairs,
                                   int experts, const float* scales, int32_t* ids, float* weights,
                                   int32_t* used) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= pairs) return;
  const int32_t id = in_ids[i];
  const int32_t own = id >= 0 && id < experts ? id : -1;
  ids[i] = own;
  weights[i] = scales != nullptr && own >= 0 ? in_weights[i] * scales[own] : in_weights[i];
  if (used != nullptr) used[i] = own;
}

constexpr int kPlaceEach = 4;  // per thread, all under way at once: host memory is far

template <typename T>
__global__ void PlaceRowsKernel(const float* rows, const int32_t* where, int cols, T* slots,
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
  T* to = slots + where[row] * slot_stride;
#pragma unroll
  for (int j = 0; j < kPlaceEach; ++j) {
    const int i = first + j * kThreads;
    if (i < cols) to[i] = FromFloat<T>(v[j]);
  }
}

}  // namespace

int LaunchPackRows(const DeviceRows& x, int operand, uint8_t* packed, int64_t stride,
                   CUstream_st* stream, const RowWeights& weights) {
  if (operand != 0) return LaunchPackOperand(x, operand, packed, stride, stream, weights);
  return WithElement(x.dtype, [&](auto type) -> int {
    using T = ElementOf<decltype(type)>;
    const auto units = static_cast<unsigned>(OperandScales(x.cols) / 8);
    const dim3 grid(NumRows(x, weights), (units + kThreads - 1) / kThreads);
    return LaunchEarly(PackRowsKernel<T>, grid, kThreads, 0, stream, static_cast<const T*>(x.data),
                       x.cols, x.stride, packed, stride, weights);
  });
}

int LaunchRoundRows(const DeviceRows& x, uint8_t* rounded, int64_t stride, CUstream_st* stream,
                    const RowWeights& weights) {
  return WithElement(x.dtype, [&](auto type) -> int {
    using T = ElementOf<decltype(type)>;
    const dim3 grid(NumRows(x, weights), (x.cols + 8 * kThreads - 1) / (8 * kThreads));
    return LaunchEarly(RoundRowsKernel<T>, grid, kThreads, 0, stream, static_cast<const T*>(x.data),
                       x.cols, x.stride, rounded, stride, weights);
  });
}

int LaunchCombine(const CombineArgs& args, CUstream_st* stream) {
  const int channels = args.narrow ? 8 * kThreads : kThreads;
  const dim3 grid(args.x.rows, (args.x.cols + channels - 1) / channels);
  return WithElement(args.x.dtype, [&](auto in) {
    return WithElement(args.out_dtype, [&](auto out) -> int {
      using In = ElementOf<decltype(in)>;
      using Out = ElementOf<decltype(out)>;
      const auto all =
          args.narrow ? CombineNarrowKernel<In, Out, false> : CombineKernel<In, Out, false>;
      const auto some =
          args.narrow ? CombineNarrowKernel<In, Out, true> : CombineKernel<In, Out, true>;
      return LaunchEarly(args.ids == nullptr ? all : some, grid, kThreads, 0, stream, args);
    });
  });
}

int LaunchAdoptRouting(const int32_t* in_ids, const float* in_weights, int pairs, int experts,
                       const float* scales, int32_t* ids, float* weights, int32_t* used,
                       CUstream_st* stream) {
  return LaunchEarly(AdoptRoutingKernel, (pairs + kThreads - 1) / kThreads, kThreads, 0, stream,
                     in_ids, in_weights, pairs, experts, scales, ids, weights, used);
}

int LaunchPlaceRows(const float* rows, const int32_t* where, int count, int cols, void* slots,
                    bool narrow, int64_t slot_stride, CUstream_st* stream) {
  if (count == 0) return 0;
  constexpr int kWide = kThreads * kPlaceEach;
  const dim3 grid(count, (cols + kWide - 1) / kWide);
  if (narrow) {
    return LaunchEarly(PlaceRowsKernel<__nv_bfloat16>, grid, kThreads, 0, stream, rows, where, cols,
                       static_cast<__nv_bfloat16*>(slots), slot_stride);
  }
  return LaunchEarly(PlaceRowsKernel<float>, grid, kThreads, 0, stream, rows, where, cols,
                     static_cast<float*>(slots), slot_stride);
}

}  // namespace moert::cuda
