// Tensor core products of bf16 with fp32 sums, and the loading of their operands.
#ifndef MOERT_EXAMPLES_HOST_CUDA_MMA_CUH_
#define MOERT_EXAMPLES_HOST_CUDA_MMA_CUH_

#include <cstdint>

namespace moert::host {

/// c += a b: 16 x 16 by 16 x 8. Lane 4 g + q: a holds rows g, g + 8, g, g + 8 at k = 2 q, 2 q + 1
/// (the first two) and 2 q + 8, 2 q + 9; b holds column g at the same k; c rows g (two) and g + 8
/// at columns 2 q, 2 q + 1. The order of k is arbitrary, but the same in a and b.
__device__ __forceinline__ void Multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// A product over 32 values of k with operands as they are in memory: a lane passes 8 neighbouring
/// k of rows g and g + 8 of a, and of column g of b.
__device__ __forceinline__ void MultiplyEight(float (&c)[4], const uint4& low, const uint4& high,
                                              const uint4& b) {
  const uint32_t first[4] = {low.x, high.x, low.y, high.y};
  const uint32_t second[4] = {low.z, high.z, low.w, high.w};
  Multiply(c, first, b.x, b.y);
  Multiply(c, second, b.z, b.w);
}

/// The fragment a of 16 rows and 16 columns k of a row-major matrix in shared memory. at: row lane
/// % 16, column lane / 16 * 8.
__device__ __forceinline__ void LoadMatrix(const uint16_t* at, uint32_t (&a)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(at))));
}

/// The fragment b of 8 columns n that are rows of a row-major matrix, at 16 of its columns k. at:
/// row lane % 8, column lane / 8 % 2 * 8.
__device__ __forceinline__ void LoadColumns(const uint16_t* at, uint32_t* b0, uint32_t* b1) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(*b0), "=r"(*b1)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(at))));
}

/// The fragment b of 16 rows k and 8 columns n of a row-major matrix; `row` points to row lane
/// % 16.
__device__ __forceinline__ void LoadTransposed(const uint16_t* row, uint32_t* b0, uint32_t* b1) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(*b0), "=r"(*b1)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row))));
}

/// Transposes an 8 x 8 matrix of 16-bit numbers: lane 4 g + q holds row g, columns 2 q and 2 q + 1.
__device__ __forceinline__ uint32_t Transposed(uint32_t v) {
  uint32_t t;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(v));
  return t;
}

__device__ __forceinline__ uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

/// A policy for L2 to evict these lines first: weights are read once per step. Activations, caches
/// and code should stay.
__device__ __forceinline__ uint64_t EvictFirst() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// 16 bytes from device to shared memory, of which those beyond `bytes` become zeros.
__device__ __forceinline__ void CopyAsync(uint32_t shared, const void* global, int bytes,
                                          uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(shared),
               "l"(global), "r"(bytes), "l"(policy)
               : "memory");
}
__device__ __forceinline__ void CopyAsync(uint32_t shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most `kLeft` groups of this thread's copies are in flight.
template <int kLeft>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_MMA_CUH_
