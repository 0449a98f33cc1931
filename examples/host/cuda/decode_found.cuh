// Partial results of blocks that share a query row's keys, and their combination, which is the same
// within a cluster and through device memory.
#ifndef MOERT_EXAMPLES_HOST_CUDA_DECODE_FOUND_CUH_
#define MOERT_EXAMPLES_HOST_CUDA_DECODE_FOUND_CUH_

#include "host/cuda/attention_kernel.h"
#include "host/cuda/mma.cuh"

namespace moert::host {

/// The softmax of a head over the keys of one block, or of all: the highest score, in base-2 units,
/// and the sum of the weights relative to it.
struct Found {
  float highest, sum;
};

__device__ __forceinline__ float WeightOf(const Found& found, float highest) {
  return found.sum == 0 ? 0.0f : exp2f(found.highest - highest);
}

/// A head's sink in base-2 units.
__device__ __forceinline__ float SinkOf(const AttentionArgs& a, int head) {
  return a.sinks == nullptr ? -INFINITY : a.sinks[head] * 1.44269504f;
}

/// Combines the results of `count` blocks, in order, for one channel. mixed(i): block i's weighted
/// sum.
template <typename GetFound, typename GetMixed>
__device__ __forceinline__ float Combine(int count, float sink, GetFound found, GetMixed mixed) {
  float highest = sink;
  for (int i = 0; i < count; ++i) highest = fmaxf(highest, found(i).highest);
  float sum = sink == -INFINITY ? 0.0f : exp2f(sink - highest), total = 0;
  for (int i = 0; i < count; ++i) {
    const Found part = found(i);
    if (part.sum == 0) continue;  // the block had no keys and wrote no channels
    const float weight = WeightOf(part, highest);
    sum = __fmaf_rn(weight, part.sum, sum);
    total = __fmaf_rn(weight, mixed(i), total);
  }
  return total / sum;
}

/// The results of the blocks of one (row, head): [parts] softmaxes, followed by weighted sums
/// [parts][head_dim].
struct Partials {
  Found* found;
  float* mixed;
};
__device__ __forceinline__ Partials PartialsOf(float* partials, const AttentionArgs& a, int parts,
                                               int64_t row, int head) {
  float* at = partials + (row * a.heads + head) * parts * (a.head_dim + 2);
  return {reinterpret_cast<Found*>(at), at + 2 * parts};
}

/// The two halves of a barrier of the cluster: stores before ClusterArrive are visible after
/// ClusterWait.
__device__ __forceinline__ void ClusterArrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void ClusterWait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/// Stores v to block `rank` of the cluster, at the shared address that `mine` has in this block.
__device__ __forceinline__ void StoreTo(float* mine, int rank, float v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t at;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(SharedAddress(mine)), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
#endif
}

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_DECODE_FOUND_CUH_
