// Activations, and where a channel lies in a packed activation row.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_ACTIVATION_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_ACTIVATION_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/device_types.h"

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

/// x sigmoid(alpha x).
__device__ __forceinline__ float Silu(float v, float alpha = 1) {
  return __fdividef(v, 1.0f + __expf(-alpha * v));
}

__device__ __forceinline__ float Activate(DeviceFunction function, float alpha, float v) {
  if (function == DeviceFunction::kSilu) return Silu(v, alpha);
  if (function == DeviceFunction::kGelu) return 0.5f * v * (1.0f + erff(v * 0.70710678118654752f));
  if (function == DeviceFunction::kRelu2) return v < 0 ? 0.0f : v * v;
  return 0.5f * v * (1.0f + tanhf(0.79788456080286536f * (v + 0.044715f * v * v * v)));
}

/// The lesser of v and `limit`; NaN stays NaN.
__device__ __forceinline__ float Below(float v, float limit) { return v > limit ? limit : v; }

/// moert::ExpertActivation.
__device__ __forceinline__ float Activate(const DeviceActivation& a, float gate, float up) {
  const float active = Activate(a.function, a.alpha, Below(gate, a.limit));
  if (a.gated == 0) return active;
  return active * (-Below(-Below(up, a.limit), a.limit) + a.up_offset);
}

/// act(gate) * up, silu or gelu's tanh form, by fast instructions.
__device__ __forceinline__ float Activated(bool silu, float gate, float up) {
  const float x = silu ? gate : 1.5957691216057308f * (gate + 0.044715f * gate * gate * gate);
  float e, r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.4426950408889634f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
  return gate * r * up;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_ACTIVATION_CUH_
