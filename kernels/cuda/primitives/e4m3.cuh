// Conversion of floats to e4m3.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_E4M3_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_E4M3_CUH_

#include <cstdint>

namespace moert::cuda {

/// The nearest e4m3 value, ties to even; |x| is at most 448.
__device__ __forceinline__ float NearestF8(float x) {
  const float magnitude = fabsf(x);
  const int exponent = max((__float_as_int(magnitude) >> 23) - 127, -6);
  const float step = __int_as_float((exponent - 3 + 127) << 23);
  const float inverse = __int_as_float((3 - exponent + 127) << 23);
  return copysignf(rintf(magnitude * inverse) * step, x);
}

/// The bits of an e4m3 value.
__device__ __forceinline__ uint8_t F8Bits(float v) {
  const float magnitude = fabsf(v);
  const int bits = magnitude < 0x1p-6f ? static_cast<int>(magnitude * 0x1p9f)
                                       : (__float_as_int(magnitude) >> 20) - ((127 - 7) << 3);
  return static_cast<uint8_t>(bits | (__float_as_uint(v) >> 31) << 7);
}

/// Two e4m3, `low` in the lower byte; larger values saturate to 448. sm_89 has the instruction, but
/// runs the code of sm_80 where a file has none for it.
__device__ __forceinline__ uint32_t PackF8(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t v;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(v) : "f"(high), "f"(low));
  return v;
#else
  const auto bits = [](float x) -> uint32_t {
    return F8Bits(NearestF8(fminf(fmaxf(x, -448.0f), 448.0f)));
  };
  return bits(low) | bits(high) << 8;
#endif
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_E4M3_CUH_
