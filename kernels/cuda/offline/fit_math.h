// The search for a group's scale on a device, as plain functions that tests also run on the host.
// They round as on the CPU (lib/offline/rtn_candidates.cc, lib/offline/hqq.cc), since files that
// include this are compiled without contraction to fused multiply-adds.
#ifndef MOERT_KERNELS_CUDA_OFFLINE_FIT_MATH_H_
#define MOERT_KERNELS_CUDA_OFFLINE_FIT_MATH_H_

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define MOERT_FIT_FUNCTION __host__ __device__ __forceinline__
#else
#define MOERT_FIT_FUNCTION inline
#endif

namespace moert::cuda {

/// Scale and offset of a group, as they are stored. A NaN scale: the device cannot decide, and the
/// CPU has to search.
struct Fit {
  float scale;
  float offset;
};

MOERT_FIT_FUNCTION uint32_t BitsOf(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
MOERT_FIT_FUNCTION float FloatOf(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
MOERT_FIT_FUNCTION Fit Undecided() { return {FloatOf(0x7fc00000u), 0}; }
MOERT_FIT_FUNCTION bool Decided(const Fit& fit) { return fit.scale == fit.scale; }

/// The nearest bf16 of a finite value.
MOERT_FIT_FUNCTION float NearestBf16(float x) {
  const uint32_t bits = BitsOf(x);
  return FloatOf((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}
/// The nearest integer, ties to even, for |x| < 2^22.
MOERT_FIT_FUNCTION float NearestWhole(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
  return (x + kMagic) - kMagic;
}
MOERT_FIT_FUNCTION float Clamped(float x, float low, float high) {
  return x < low ? low : x > high ? high : x;
}
MOERT_FIT_FUNCTION bool IsFinite(float x) { return (BitsOf(x) & 0x7f800000u) != 0x7f800000u; }

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_OFFLINE_FIT_MATH_H_
