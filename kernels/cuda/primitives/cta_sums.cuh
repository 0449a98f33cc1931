// Sums over the threads of a CTA.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_CTA_SUMS_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_CTA_SUMS_CUH_

#include <cuda_runtime.h>

#include <cub/warp/warp_scan.cuh>

namespace moert::cuda {

template <typename T, int kCount>
struct Several {
  T v[kCount];
};

/// Sums over the lanes of a warp up to and including this one.
template <typename T, int kCount>
__device__ __forceinline__ Several<T, kCount> WarpSums(Several<T, kCount> sum) {
  typename cub::WarpScan<T>::TempStorage registers;  // it needs no memory
#pragma unroll
  for (int i = 0; i < kCount; ++i) cub::WarpScan<T>(registers).InclusiveSum(sum.v[i], sum.v[i]);
  return sum;
}

/// Sums over the threads before this one, and the total over all. The CTA has whole warps. scratch:
/// [32], shared. On an H200 two sums of 1,024 threads take 0.49 us, by cub::BlockScan 1.12, three
/// of 544 threads in 64 bits 0.69 and 1.01 (gpu.cub_test [rates]).
template <typename T, int kCount>
__device__ __forceinline__ Several<T, kCount> SumBefore(const Several<T, kCount>& mine,
                                                        Several<T, kCount>* scratch,
                                                        Several<T, kCount>* total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Several<T, kCount> sum = WarpSums(mine);
  if (lane == 31) scratch[warp] = sum;
  __syncthreads();
  Several<T, kCount> warps{};
  if (lane < static_cast<int>(blockDim.x) / 32) warps = scratch[lane];
  warps = WarpSums(warps);
  Several<T, kCount> before;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const T front = __shfl_sync(0xffffffffu, warps.v[i], max(warp - 1, 0));
    total->v[i] = __shfl_sync(0xffffffffu, warps.v[i], 31);
    before.v[i] = (warp > 0 ? front : T{0}) + sum.v[i] - mine.v[i];
  }
  return before;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_CTA_SUMS_CUH_
