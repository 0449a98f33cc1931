// The findings of blocks that share a query row's keys, and their sum: made the same way within a
// cluster and through device memory.
#ifndef MOERT_EXAMPLES_HOST_CUDA_DECODE_FOUND_CUH_
#define MOERT_EXAMPLES_HOST_CUDA_DECODE_FOUND_CUH_

#include "host/cuda/attention_kernel.h"
#include "host/cuda/mma.cuh"

namespace moert::host {

/// The finding of one block, or of all, for a head: the highest score, in powers of two, and the
/// sum of the weights relative to it.
struct Found {
  float highest, sum;
};

__device__ __forceinline__ float WeightOf(const Found& found, float highest) {
  return found.sum == 0 ? 0.0f : exp2f(found.highest - highest);
}

/// A head's sink in powers of two.
__device__ __forceinline__ float SinkOf(const AttentionArgs& a, int head) {
  return a.sinks == nullptr ? -INFINITY : a.sinks[head] * 1.44269504f;
}

/// Adds what `count` blocks found, in their order. found(i); mixed(i): its sum of one channel.
template <typename GetFound, typename GetMixed>
__device__ __forceinline__ float Combine(int count, float sink, GetFound found, GetMixed mixed) {
  float highest = sink;
  for (int i = 0; i < count; ++i) highest = fmaxf(highest, found(i).highest);
  float sum = sink == -INFINITY ? 0.0f : exp2f(sink - highest), total = 0;
  for (int i = 0; i < count; ++i) {
    const Found part = found(i);
    if (part.sum == 0) continue;  // it had no keys: its channels were not written
    const float weight = WeightOf(part, highest);
    sum = __fmaf_rn(weight, part.sum, sum);
    total = __fmaf_rn(weight, mixed(i), total);
  }
  return total / sum;
}

/// The findings of the blocks of one (row, head), and behind them their mixed values: [parts] and
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

/// A barrier of the cluster, in two halves: what was stored before the one is seen behind the
/// other.
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

/// Stores to the shared memory of another block of the cluster: where `mine` is in this one's.
__device__ __forceinline__ void StoreTo(float* mine, int rank, float v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t at;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(SharedAddress(mine)), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
#endif
}

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_DECODE_FOUND_CUH_
