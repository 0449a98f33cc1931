// mbarriers with transactions and bulk copies (sm_90): stages of a ring in shared memory that some
// warps fill and others empty.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_PIPELINE_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_PIPELINE_CUH_

#include <cstdint>

#include "kernels/cuda/primitives/packing.cuh"

namespace moert::cuda {

/// Called by one thread; FenceBarrierInit and a barrier of the CTA must follow.
__device__ __forceinline__ void InitBarrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void Arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// True of one lane of a whole warp.
__device__ __forceinline__ bool ElectLane() {
  uint32_t elected;
  asm volatile("{\n.reg .pred one;\nelect.sync _|one, 0xffffffff;\nselp.u32 %0, 1, 0, one;\n}"
               : "=r"(elected));
  return elected != 0;
}
/// Arrives, and makes the phase wait for bulk copies of `bytes` bytes, too.
__device__ __forceinline__ void ArriveExpecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
/// Arrives when this thread's asynchronous copies (cp.async) so far have ended. A thread that waits
/// for them orders them before tensor cores by FenceAsyncProxy.
__device__ __forceinline__ void ArriveBehindCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
/// Waits until the phase of this parity has ended.
__device__ __forceinline__ void Await(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra WAIT;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
/// Copies a multiple of 16 bytes, which the barrier counts as they arrive.
__device__ __forceinline__ void BulkCopy(uint32_t shared, const void* global, uint32_t bytes,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}
/// Makes ordinary stores that this thread made or saw visible to bulk copies and tensor core
/// operations that it, or threads behind its next barrier, issue afterwards.
__device__ __forceinline__ void FenceAsyncProxy() {
  asm volatile("fence.proxy.async;" ::: "memory");
}
/// The same for shared memory only.
__device__ __forceinline__ void FenceAsyncProxyShared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// The current stage of a ring of kStages stages, and the parity of its barriers.
template <int kStages>
struct RingPlace {
  uint32_t stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Transposed 8 x 8 matrices of 16 bits: a lane holds rows 2t, 2t + 1 of column g; lane l has the
/// address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void StoreTransposed2(uint32_t row, uint32_t m0, uint32_t m1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(m0),
               "r"(m1)
               : "memory");
}
__device__ __forceinline__ void StoreTransposed4(uint32_t row, uint32_t m0, uint32_t m1,
                                                 uint32_t m2, uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(m0), "r"(m1), "r"(m2), "r"(m3)
               : "memory");
}
__device__ __forceinline__ uint4 LoadShared16(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}
__device__ __forceinline__ uint32_t LoadShared4(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ uint2 LoadShared8(uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ void StoreShared8(uint32_t at, float first, float second) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(first), "f"(second) : "memory");
}
__device__ __forceinline__ uint32_t LoadSharedByte(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ uint32_t LoadSharedHalf(uint32_t at) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at) : "memory");
  return v;
}
/// Two bf16, `low` in the lower half.
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  uint32_t v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_PIPELINE_CUH_
