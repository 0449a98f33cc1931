// Helpers of the kernels that manage the slots of a layer.
#ifndef MOERT_KERNELS_CUDA_CACHE_SERVED_SLOTS_CUH_
#define MOERT_KERNELS_CUDA_CACHE_SERVED_SLOTS_CUH_

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/cache/serve_misses.h"
#include "kernels/cuda/route/expert_tiles.cuh"

namespace moert::cuda {

/// Loads a value past the L1 cache, which may not have what others have written: for values that
/// are read before the preceding kernels have ended.
template <typename T>
__device__ __forceinline__ T LoadFresh(const T* at) {
  using Word = std::conditional_t<alignof(T) % sizeof(uint4) == 0, uint4, uint2>;
  constexpr int kWords = sizeof(T) / sizeof(Word);
  static_assert(sizeof(T) % sizeof(Word) == 0 && alignof(T) % alignof(Word) == 0);
  Word words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = __ldcg(reinterpret_cast<const Word*>(at) + i);
  T value;
  memcpy(&value, words, sizeof value);
  return value;
}

/// The number of empty slots before `slot`.
__device__ __forceinline__ int FreeBefore(const uint8_t* held, int slot) {
  int count = 0;
  for (int s = 0; s < slot; ++s) count += held[s] == 0 ? 1 : 0;
  return count;
}

/// The least of a warp's keys. Called by all its lanes.
__device__ __forceinline__ uint64_t LeastKeyOfWarp(uint64_t key) {
  const auto high = static_cast<uint32_t>(key >> 32), low = static_cast<uint32_t>(key);
  const uint32_t least = __reduce_min_sync(~0U, high);
  return uint64_t{least} << 32 | __reduce_min_sync(~0U, high == least ? low : ~0U);
}
/// The least key of a CTA's threads. Each warp stores its own least key, and after a barrier the
/// least of these is found: 64-bit atomic minima in shared memory would be loops that take turns.
struct LeastKey {
  uint64_t of_warp[kTileThreads / 32];
};
__device__ __forceinline__ void StoreLeast(uint64_t of_warp, LeastKey& least) {
  if (threadIdx.x % 32 == 0) least.of_warp[threadIdx.x / 32] = of_warp;
}
/// Returns the least of the stored keys. Called by all threads, of whole warps.
__device__ __forceinline__ uint64_t LeastOf(const LeastKey& least) {
  const uint32_t lane = threadIdx.x % 32;
  return LeastKeyOfWarp(lane < blockDim.x / 32 ? least.of_warp[lane] : kNobodyLends);
}
/// Finds the least of the LendingKeys of the threads' experts that are `in`. Called by all threads,
/// of whole warps.
__device__ __forceinline__ void FindLeast(bool in, double worth, LeastKey& least) {
  StoreLeast(LeastKeyOfWarp(in ? LendingKey(static_cast<float>(worth), threadIdx.x) : kNobodyLends),
             least);
}

/// After this load, all stores are visible that another CTA made before it stored the value.
__device__ __forceinline__ int32_t LoadAcquire(const int32_t* at) {
  int32_t value = 0;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_SERVED_SLOTS_CUH_
