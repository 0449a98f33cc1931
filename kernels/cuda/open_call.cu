#include <cuda_runtime.h>

#include "kernels/cuda/open_call.h"
#include "kernels/cuda/primitives/launch.cuh"

namespace moert::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostBlocks = 16;
constexpr int kWordsABlock = 2048;

__global__ void __launch_bounds__(kThreads)
    PublishKernel(const __grid_constant__ PublishArgs args) {
  // The next kernel may begin, and waits: nothing here is written by it before this ends.
  TriggerDependentLaunch();
  GridDependencySync();
  const int stride = gridDim.x * kThreads;
#pragma unroll
  for (const PublishPiece& piece : args.piece) {
    for (int i = blockIdx.x * kThreads + threadIdx.x; i < piece.words; i += stride) {
      piece.to[i] = piece.from[i];
    }
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (atomicAdd(args.arrived, 1) != gridDim.x - 1) return;
  // The last block: all others' fences lie behind.
  *args.arrived = 0;
  const uint32_t number = *args.sequence + 1;
  *args.sequence = number;
  static_cast<volatile uint32_t*>(args.calls)[number % PublishArgs::kRing] = args.call_id;
  __threadfence_system();
  *static_cast<volatile uint32_t*>(args.doorbell) = number;
  __threadfence_system();
}

__global__ void ApplyKernel(const __grid_constant__ ApplyArgs args) {
  TriggerDependentLaunch();
  GridDependencySync();
  // One read, not one a warp: reads of host memory stand in line behind transfers.
  __shared__ int count;
  if (threadIdx.x == 0) {
    const int2 counts = __ldcv(reinterpret_cast<const int2*>(args.counts));
    count = counts.x;
    *args.cpu_rows = counts.y;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const TableChange change = args.changes[i];
    args.table[change.index] = change.handle;
  }
  if (threadIdx.x == 0) *static_cast<volatile uint32_t*>(args.release) = 0;
  __threadfence_system();
}

__global__ void PlaceOpenRowsKernel(const float* rows, const int32_t* where, const int32_t* count,
                                    int cols, float* slots, int64_t slot_stride) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t row = blockIdx.x;
  if (row >= *count) return;
  float* to = slots + where[row] * slot_stride;
  for (int i = threadIdx.x; i < cols; i += kThreads) to[i] = rows[row * cols + i];
}

}  // namespace

int LaunchPublish(const PublishArgs& args, CUstream_st* stream) {
  int words = 0;
  for (const PublishPiece& piece : args.piece) words += piece.words;
  const int wanted = (words + kWordsABlock - 1) / kWordsABlock;
  const int blocks = wanted < 1 ? 1 : wanted > kMostBlocks ? kMostBlocks : wanted;
  return LaunchEarly(PublishKernel, blocks, kThreads, 0, stream, args);
}

int LaunchApply(const ApplyArgs& args, CUstream_st* stream) {
  // Not early: it must not begin before the stream's wait in front of it is over.
  ApplyKernel<<<1, kThreads, 0, stream>>>(args);
  return cudaPeekAtLastError();
}

int LaunchPlaceOpenRows(const float* rows, const int32_t* where, const int32_t* count, int most,
                        int cols, float* slots, int64_t slot_stride, CUstream_st* stream) {
  return LaunchEarly(PlaceOpenRowsKernel, most, kThreads, 0, stream, rows, where, count, cols,
                     slots, slot_stride);
}

int LoadOpenCallKernels() { return LoadKernels(PublishKernel, ApplyKernel, PlaceOpenRowsKernel); }

}  // namespace moert::cuda
