// Conversion of floats to e4m3.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_E4M3_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_E4M3_CUH_

#include <cstdint>

namespace moert::cuda {

/// Two e4m3, `low` in the lower byte; larger values saturate to 448. Only devices that multiply
/// e4m3 have the instruction.
__device__ __forceinline__ uint32_t PackF8([[maybe_unused]] float low,
                                           [[maybe_unused]] float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t v;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(v) : "f"(high), "f"(low));
  return v;
#else
  return 0;
#endif
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_E4M3_CUH_
