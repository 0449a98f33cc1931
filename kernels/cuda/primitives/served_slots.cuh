// What kernels that look after the slots of a layer share.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_SERVED_SLOTS_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_SERVED_SLOTS_CUH_

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/serve_misses.h"

namespace moert::cuda {

/// The value in device memory, past the L1 cache: for what is read before the kernels in front have
/// ended, which may not know yet what others have written.
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

/// How many slots before `slot` nobody is in.
__device__ __forceinline__ int FreeBefore(const uint8_t* held, int slot) {
  int count = 0;
  for (int s = 0; s < slot; ++s) count += held[s] == 0 ? 1 : 0;
  return count;
}

/// The least LendingKey of the threads' experts that are `in`, of equals the first; `least` begins
/// as kNobodyLends. By all threads of whole warps.
__device__ __forceinline__ void FindLeast(bool in, double worth, uint64_t* least) {
  const uint64_t key = in ? LendingKey(static_cast<float>(worth), threadIdx.x) : kNobodyLends;
  const auto high = static_cast<uint32_t>(key >> 32);
  const uint32_t alike = __ballot_sync(~0U, high == __reduce_min_sync(~0U, high));
  if (in && threadIdx.x % 32 == __ffs(static_cast<int>(alike)) - 1) {
    atomicMin(reinterpret_cast<unsigned long long*>(least), static_cast<unsigned long long>(key));
  }
}

/// What was written before it was stored by another CTA can be read behind this.
__device__ __forceinline__ int32_t LoadAcquire(const int32_t* at) {
  int32_t value = 0;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_SERVED_SLOTS_CUH_
