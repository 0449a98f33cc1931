// Activations, and where a channel lies in a packed activation row.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_ACTIVATION_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_ACTIVATION_CUH_

#include <cuda_bf16.h>

#include <cstdint>

namespace moert::cuda {

/// Packed rows hold B fragments: of every 16 channels, for u = 0..3, a unit of 8 bytes with the
/// channels {2u, 2u+1, 2u+8, 2u+9}. Every packing reads whole units, each in its own order of k.
__host__ __device__ constexpr int PackedIndex(int channel) {
  const int in16 = channel & 15;
  return (channel & ~15) + ((in16 & 7) >> 1) * 4 + ((in16 >> 3) << 1) + (channel & 1);
}

__device__ __forceinline__ uint16_t ToBf16(float v) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(v));
}

/// moert::Activation.
__device__ __forceinline__ float Activate(int kind, float v) {
  if (kind == 0) return __fdividef(v, 1.0f + __expf(-v));
  if (kind == 1) return 0.5f * v * (1.0f + erff(v * 0.70710678118654752f));
  return 0.5f * v * (1.0f + tanhf(0.79788456080286536f * (v + 0.044715f * v * v * v)));
}

/// act(gate) * up, silu or gelu's tanh form, by fast instructions.
__device__ __forceinline__ float Activated(bool silu, float gate, float up) {
  const float x = silu ? gate : 1.5957691216057308f * (gate + 0.044715f * gate * gate * gate);
  return __fdividef(gate, 1.0f + __expf(-x)) * up;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_ACTIVATION_CUH_
