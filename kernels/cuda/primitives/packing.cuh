// How packed weights get into the registers of A fragments: directly from global memory, or through
// a ring in shared memory (weight_ring.cuh).
//
// A unit is what a warp multiplies at a time: two row blocks by 128 k, bf16 64. The order of k
// inside a product is free as long as weights and activations agree. So each packing uses the order
// in which a lane's weights are contiguous, as far as loads have at most two-way bank conflicts:
//   bf16           as stored: unit t of each k16 block, 16 bytes
//   w8, fp8, w8a8  lane t: k16 block t / 2 of 32 k, units 2 (t % 2) + i, 16 bytes
//   w4, fp4, w4a8  the same, 8 bytes
//   w2, w3         lane t: k32 block t / 2 of 64 k, units 2 (t % 2) + i, both halves: 8 bytes; w3
//                  8 bytes of its plane besides
// A unit of activations is 4 channels, see activation.cuh.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_PACKING_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_PACKING_CUH_

#include <cstdint>

#include "kernels/cuda/device_types.h"

namespace moert::cuda {

MOERT_HOST_DEVICE constexpr bool IsFp4(Packing p) {
  return p == Packing::kMxFp4 || p == Packing::kNvFp4;
}

/// How a unit is loaded, per row block.
template <Packing kPacking>
struct UnitShape {
  static constexpr bool kHalfWords = K64Bytes(kPacking) <= 512;
  // Pieces of 64 k.
  static constexpr int kK64s =
      kPacking == Packing::kBf16 || kPacking == Packing::kW8 || kPacking == Packing::kF8Block ? 1
                                                                                              : 2;
  static constexpr int kWords = kHalfWords ? 2 : 4;
  static constexpr int kBytes = K64Bytes(kPacking) * kK64s;
  static constexpr bool kInt = kPacking == Packing::kW8A8 || kPacking == Packing::kW4A8;
  /// Whether weights come through shared memory (weight_ring.cuh), not straight into registers.
  static constexpr bool kRing =
      kHalfWords || kPacking == Packing::kW8 || kPacking == Packing::kF8Block;
  static constexpr int kElement = kInt ? 1 : 2;  // bytes of an activation
};

/// Where a lane's bytes of a load into registers begin.
template <Packing kPacking>
__device__ __forceinline__ int LaneOffset(int lane) {
  const int g = lane >> 2, t = lane & 3;
  return kPacking == Packing::kBf16 ? lane * 16 : (t >> 1) * 256 + (2 * g + (t & 1)) * 16;
}

/// Where a lane's activations of a row begin, in channels.
template <Packing kPacking>
__device__ __forceinline__ int LaneChannels(int lane) {
  const int t = lane & 3;
  if (kPacking == Packing::kBf16) return t * 4;
  const bool k32 = kPacking == Packing::kW2 || kPacking == Packing::kW3;
  return (t >> 1) * (k32 ? 32 : 16) + (t & 1) * 8;
}

/// A cache hint: L2 evicts these lines first. Weights are read once; tables, activations and code
/// stay.
__device__ __forceinline__ uint64_t EvictFirst() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// Loads 16 bytes past L1; L2 also fetches the neighbouring lines. Leaves v unchanged unless
/// `there`. The assembly loads the registers in place: a move after the load would wait for it.
__device__ __forceinline__ void LoadWeights(uint32_t (&v)[4], const uint8_t* at, uint64_t policy,
                                            bool there) {
  asm volatile(
      "{\n"
      ".reg .pred there;\n"
      "setp.ne.s32 there, %6, 0;\n"
      "@there ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4], "
      "%5;\n"
      "}"
      : "+r"(v[0]), "+r"(v[1]), "+r"(v[2]), "+r"(v[3])
      : "l"(at), "l"(policy), "r"(static_cast<int>(there)));
}

/// Shared memory for the scales of an item's channels: both row blocks, 16 rows of bf16 each.
constexpr int kScaleBytes = 64;

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
/// Copies 16 bytes asynchronously, or writes zeros unless `there`. Groups of copies complete in
/// order.
__device__ __forceinline__ void CopyAsync16(uint32_t shared, const void* global, bool there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(there ? 16 : 0)
               : "memory");
}
/// Four bytes, likewise.
__device__ __forceinline__ void CopyAsync4(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}
/// Copies weights; `bytes`: 16, or 0 for zeros.
__device__ __forceinline__ void CopyWeights16(uint32_t shared, const void* global, uint32_t bytes,
                                              uint64_t policy) {
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint.L2::256B [%0], [%1], 16, %2, %3;" ::"r"(shared),
      "l"(global), "r"(bytes), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void CopyAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most `kPending` groups of this thread are under way.
template <int kPending>
__device__ __forceinline__ void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// The scales that this lane needs: of rows g and g + 8 of both row blocks.
struct ChannelScales {
  float scale[2][2];

  /// `at`: in shared memory.
  __device__ __forceinline__ ChannelScales(uint32_t at, int lane) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        uint16_t v;
        asm volatile("ld.shared.u16 %0, [%1];"
                     : "=h"(v)
                     : "r"(at + r * 32 + upper * 16 + (lane >> 2) * 2));
        scale[r][upper] = __uint_as_float(static_cast<uint32_t>(v) << 16);
      }
    }
  }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_PACKING_CUH_
