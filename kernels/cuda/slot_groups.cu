// The slots of a call, grouped by expert.
#include <cuda_runtime.h>

#include "kernels/cuda/primitives/element.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/selection_tally.cuh"
#include "kernels/cuda/primitives/top_k.cuh"
#include "kernels/cuda/route.h"

namespace moert::cuda {
namespace {

constexpr int kChunk = 1024;  // pairs that a CTA places
constexpr int kChunkWarps = kChunk / 32;

/// A warp an expert adds what it was given in this call.
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

/// A CTA places a chunk's slots behind those of the chunks before it. A thread a pair: its rank in
/// the warp by a match, then behind those of the warps before it. Slots of an expert come out
/// ascending.
__global__ void __launch_bounds__(kChunk)
    GroupKernel(const int32_t* ids, int pairs, int experts, SlotGroups groups) {
  TriggerDependentLaunch();
  GridDependencySync();
  __shared__ uint16_t before[kChunkWarps][kMaxExperts];  // of an expert, in the warps before
  __shared__ int places[kMaxExperts];
  __shared__ int totals[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int in_use = (min(pairs - static_cast<int>(blockIdx.x) * kChunk, kChunk) + 31) / 32;
  for (int w = 0; w < in_use; ++w) {
    for (int e = threadIdx.x; e < experts; e += static_cast<int>(blockDim.x)) before[w][e] = 0;
  }
  __syncthreads();
  const int at = static_cast<int>(blockIdx.x) * kChunk + static_cast<int>(threadIdx.x);
  const int mine = at < pairs && warp < in_use ? ids[at] : -1;
  const bool placed = mine >= 0 && mine < experts;
  const uint32_t alike = __match_any_sync(kFull, mine);
  const int rank = __popc(alike & ((1u << lane) - 1));
  if (placed && rank == 0) before[warp][mine] = static_cast<uint16_t>(__popc(alike));
  __syncthreads();
  const int e = threadIdx.x;
  int here = 0, all = 0, ahead = 0;
  if (e < experts) {
    for (int w = 0; w < in_use; ++w) {
      const int count = before[w][e];
      before[w][e] = static_cast<uint16_t>(here);
      here += count;
    }
    if (gridDim.x == 1) {
      all = here;
    } else {
#pragma unroll 8
      for (int c = 0; c < static_cast<int>(gridDim.x); ++c) {
        const int count = groups.chunks[static_cast<int64_t>(c) * experts + e];
        all += count;
        if (c < static_cast<int>(blockIdx.x)) ahead += count;
      }
    }
  }
  int sum = all;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(kFull, sum, d);
    if (lane >= d) sum += other;
  }
  if (lane == 31) totals[warp] = sum;
  __syncthreads();
  int first = sum - all;
  for (int w = 0; w < warp && w * 32 < experts; ++w) first += totals[w];
  if (e < experts) {
    places[e] = first + ahead;
    if (blockIdx.x == 0) {
      groups.firsts[e] = first;
      groups.counts[e] = all;
    }
  }
  __syncthreads();
  if (placed) groups.sorted[places[mine] + before[warp][mine] + rank] = at;
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
    error = LaunchEarly(GroupKernel, chunks, kChunk, 0, stream, ids, pairs, experts, groups);
  }
  if (error != 0 || tally == nullptr) return error;
  return LaunchEarly(TallyKernel, (experts + 3) / 4, 128, 0, stream, groups, pairs, experts,
                     weights, tally);
}

int LaunchIota(int32_t* first, int begin, int count, CUstream_st* stream) {
  return LaunchEarly(IotaKernel, (count + 255) / 256, 256, 0, stream, first, begin, count);
}

}  // namespace moert::cuda
