// The slots of a call, grouped by expert.
#include <cuda_runtime.h>

#include "kernels/cuda/primitives/cta_sums.cuh"
#include "kernels/cuda/primitives/element.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/route/add_to_tally.cuh"
#include "kernels/cuda/route/route.h"
#include "kernels/cuda/route/top_k.cuh"

namespace moert::cuda {
namespace {

constexpr int kChunk = 1024;  // pairs that a CTA places
constexpr int kChunkWarps = kChunk / 32;

/// Adds the slots and mass of this call to the tally, a warp per expert.
__global__ void __launch_bounds__(128) TallyKernel(SlotGroups groups, int pairs, int experts,
                                                   const float* weights, SelectionTally* tally) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int expert = blockIdx.x * 4 + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (expert >= experts) return;
  const int first = groups.firsts[expert], count = groups.counts[expert];
  float mass = 0;
  for (int i = lane; i < count; i += 32) mass += weights[groups.sorted[first + i]];
  mass = WarpSum(mass);
  if (lane != 0) return;
  if (count > 0) AddCall(tally + expert, count, mass);
  if (expert == 0) AddCall(tally + experts, pairs, 0);
}

/// Counts each chunk's experts.
__global__ void __launch_bounds__(256)
    CountChunkKernel(const int32_t* ids, int pairs, int experts, int32_t* chunks) {
  TriggerDependentLaunch();
  GridDependencySync();
  __shared__ int counts[kMaxExperts];
  for (int e = threadIdx.x; e < experts; e += 256) counts[e] = 0;
  __syncthreads();
  const int begin = blockIdx.x * kChunk;
  const int end = min(pairs, begin + kChunk);
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += 256) {
    const int e = ids[i];
    if (e >= 0 && e < experts) atomicAdd(counts + e, 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += 256) {
    chunks[static_cast<int64_t>(blockIdx.x) * experts + e] = counts[e];
  }
}

/// A CTA places a chunk's slots behind those of the chunks before it. A thread has a pair: it ranks
/// the pair within the warp by a match, and places it behind the pairs of the warps before. The
/// slots of an expert come out ascending.
__global__ void __launch_bounds__(kChunk)
    GroupKernel(const int32_t* ids, int pairs, int experts, SlotGroups groups) {
  TriggerDependentLaunch();
  GridDependencySync();
  extern __shared__ uint16_t before[];  // [warps, experts]: of an expert, in the warps before
  __shared__ int all[kMaxExperts], places[kMaxExperts];
  __shared__ Several<int, 1> sums[32];
  const int warp = threadIdx.x / 32;
  const int chunks = gridDim.x, chunk = blockIdx.x;
  const int in_use = (min(pairs - chunk * kChunk, kChunk) + 31) / 32;
  for (int i = threadIdx.x; i < in_use * experts; i += kChunk) before[i] = 0;
  for (int e = threadIdx.x; e < experts; e += kChunk) all[e] = places[e] = 0;
  __syncthreads();
  const int at = chunk * kChunk + static_cast<int>(threadIdx.x);
  int mine = at < pairs ? ids[at] : -1;
  if (mine >= experts) mine = -1;
  int rank = 0;
  if (warp < in_use) rank = RankInWarp(mine, before + warp * experts);
  if (chunks > 1) {
    constexpr int kAtOnce = 8;
    for (int base = threadIdx.x; base < chunks * experts; base += kAtOnce * kChunk) {
      int count[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = base + j * kChunk;
        count[j] = i < chunks * experts ? groups.chunks[i] : 0;
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (count[j] == 0) continue;
        const int i = base + j * kChunk;
        atomicAdd(all + i % experts, count[j]);
        if (i < chunk * experts) atomicAdd(places + i % experts, count[j]);
      }
    }
  }
  __syncthreads();
  const int e = threadIdx.x;
  static_assert(kChunk >= kMaxExperts);
  int count = 0;
  if (e < experts) {
    const int here = SumWarps(before, in_use, experts, e);
    count = chunks > 1 ? all[e] : here;
  }
  Several<int, 1> total;
  const int first = SumBefore(Several<int, 1>{count}, sums, &total).v[0];
  if (e < experts) {
    places[e] += first;
    if (chunk == 0) {
      groups.firsts[e] = first;
      groups.counts[e] = count;
    }
  }
  __syncthreads();
  if (mine >= 0) groups.sorted[places[mine] + before[warp * experts + mine] + rank] = at;
}

__global__ void IotaKernel(int32_t* first, int begin, int count) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) first[i] = begin + i;
}

}  // namespace

int LaunchGroup(const int32_t* ids, int pairs, int experts, const SlotGroups& groups,
                CUstream_st* stream, const float* weights, SelectionTally* tally) {
  const auto chunks = static_cast<int>(GroupChunks(pairs));
  int error = 0;
  if (chunks > 1) {
    error =
        LaunchEarly(CountChunkKernel, chunks, 256, 0, stream, ids, pairs, experts, groups.chunks);
  }
  if (error == 0) {
    const int bytes = kChunkWarps * experts * static_cast<int>(sizeof(uint16_t));
    if (bytes > 32 << 10) {
      error = cudaFuncSetAttribute(GroupKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      if (error != 0) return error;
    }
    error = LaunchEarly(GroupKernel, chunks, kChunk, bytes, stream, ids, pairs, experts, groups);
  }
  if (error != 0 || tally == nullptr) return error;
  return LaunchEarly(TallyKernel, (experts + 3) / 4, 128, 0, stream, groups, pairs, experts,
                     weights, tally);
}

int LaunchIota(int32_t* first, int begin, int count, CUstream_st* stream) {
  return LaunchEarly(IotaKernel, (count + 255) / 256, 256, 0, stream, first, begin, count);
}

}  // namespace moert::cuda
