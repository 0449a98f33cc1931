#include <cuda_runtime.h>

#include "kernels/cuda/primitives/element.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/route/exchange_rows.h"

namespace moert::cuda {
namespace {

constexpr int kThreads = 256;

/// A CTA a row, copied in units of T.
template <typename T>
__global__ void PackRecordsKernel(const uint8_t* x, int64_t x_bytes, int row_bytes,
                                  const int32_t* ids, const float* weights, RowRecords records) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t row = blockIdx.x;
  const T* from = reinterpret_cast<const T*>(x + row * x_bytes);
  uint8_t* const record = records.data + row * records.stride;
  T* to = reinterpret_cast<T*>(record);
  const int units = row_bytes / static_cast<int>(sizeof(T));
  for (int i = threadIdx.x; i < units; i += kThreads) to[i] = from[i];
  auto* to_ids = reinterpret_cast<int32_t*>(record + records.ids_at);
  auto* to_weights = reinterpret_cast<float*>(to_ids + records.top_k);
  for (int j = threadIdx.x; j < records.top_k; j += kThreads) {
    to_ids[j] = ids[row * records.top_k + j];
    to_weights[j] = weights[row * records.top_k + j];
  }
}

__global__ void TakeRoutingKernel(RowRecords records, int32_t* ids, float* weights) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = i / records.top_k;
  if (row >= records.rows) return;
  const int64_t j = i % records.top_k;
  const uint8_t* record = records.data + row * records.stride + records.ids_at;
  ids[i] = reinterpret_cast<const int32_t*>(record)[j];
  weights[i] = reinterpret_cast<const float*>(record)[records.top_k + j];
}

/// A CTA a row and 8 kThreads channels, 8 a thread.
template <typename In, typename Out>
__global__ void __launch_bounds__(kThreads)
    AddPartsKernel(const __grid_constant__ AddPartsArgs args) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t row = blockIdx.x;
  const int cols = args.out.cols;
  const int first = (blockIdx.y * kThreads + threadIdx.x) * 8;
  if (first >= cols) return;
  const int count = cols - first;
  const int64_t part = int64_t{args.out.rows} * cols;
  const auto* parts = static_cast<const In*>(args.parts) + row * cols + first;
  float sum[8];
#pragma unroll 4
  for (int r = 0; r < args.ranks; ++r) {
    float values[8];
    LoadEight(parts + r * part, count, values);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = r == 0 ? values[i] : sum[i] + values[i];
  }
  auto* out = static_cast<Out*>(const_cast<void*>(args.out.data));
  StoreEight(sum, count, out + row * args.out.stride + first);
}

constexpr int kPairsOfCta = 16 * kThreads;

/// A CTA counts in shared memory ([experts]) first: popular experts have many pairs.
__global__ void __launch_bounds__(kThreads)
    KeepOwnKernel(const __grid_constant__ KeepOwnArgs args) {
  TriggerDependentLaunch();
  GridDependencySync();
  extern __shared__ unsigned counted[];
  for (int e = threadIdx.x; e < args.experts; e += kThreads) counted[e] = 0;
  __syncthreads();
  const int first = static_cast<int>(blockIdx.x) * kPairsOfCta;
  const int end = min(args.pairs, first + kPairsOfCta);
  for (int i = first + static_cast<int>(threadIdx.x); i < end; i += kThreads) {
    const int32_t id = args.ids[i];
    bool own = id >= 0 && id < args.experts;
    if (own) {
      const int32_t share = args.shares[id];
      const int of = share >> 16;
      own = of > 0 && i / args.top_k % of == (share & 0xffff);
    }
    args.kept[i] = own ? id : -1;
    if (own) atomicAdd(&counted[id], 1u);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < args.experts; e += kThreads) {
    if (counted[e] > 0) atomicAdd(&args.counts[e], static_cast<unsigned long long>(counted[e]));
  }
}

}  // namespace

int LaunchPackRecords(const DeviceRows& x, const int32_t* ids, const float* weights,
                      const RowRecords& records, CUstream_st* stream) {
  if (x.rows == 0) return 0;
  const int element = x.dtype == 0 ? 4 : 2;
  const int64_t x_bytes = x.stride * element;
  const int row_bytes = x.cols * element;
  const bool aligned = (reinterpret_cast<uintptr_t>(x.data) | static_cast<uintptr_t>(x_bytes) |
                        static_cast<uintptr_t>(row_bytes)) %
                           16 ==
                       0;
  const auto kernel = aligned ? PackRecordsKernel<uint4> : PackRecordsKernel<uint16_t>;
  return LaunchEarly(kernel, x.rows, kThreads, 0, stream, static_cast<const uint8_t*>(x.data),
                     x_bytes, row_bytes, ids, weights, records);
}

int LaunchTakeRouting(const RowRecords& records, int32_t* ids, float* weights,
                      CUstream_st* stream) {
  const int64_t pairs = int64_t{records.rows} * records.top_k;
  if (pairs == 0) return 0;
  const auto ctas = static_cast<unsigned>((pairs + kThreads - 1) / kThreads);
  return LaunchEarly(TakeRoutingKernel, ctas, kThreads, 0, stream, records, ids, weights);
}

int LaunchAddParts(const AddPartsArgs& args, CUstream_st* stream) {
  if (args.out.rows == 0) return 0;
  const dim3 grid(args.out.rows, (args.out.cols + 8 * kThreads - 1) / (8 * kThreads));
  return WithElement(args.out.dtype, [&](auto out) -> int {
    using Out = ElementOf<decltype(out)>;
    const auto kernel =
        args.narrow ? AddPartsKernel<__nv_bfloat16, Out> : AddPartsKernel<float, Out>;
    return LaunchEarly(kernel, grid, kThreads, 0, stream, args);
  });
}

int LaunchKeepOwn(const KeepOwnArgs& args, CUstream_st* stream) {
  if (args.pairs == 0) return 0;
  const int ctas = (args.pairs + kPairsOfCta - 1) / kPairsOfCta;
  return LaunchEarly(KeepOwnKernel, ctas, kThreads, args.experts * 4, stream, args);
}

}  // namespace moert::cuda
