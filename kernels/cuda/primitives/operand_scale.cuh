// Scales of quantized activations, as on the CPU (kernels/reference/pack_quant_reference.cc).
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_OPERAND_SCALE_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_OPERAND_SCALE_CUH_

#include <cstdint>

#include "quant/f8_group.h"

namespace moert::cuda {

/// A scale and its inverse. Both are 0 for values that are too small to matter; if a value is not
/// finite, the scale is NaN and the inverse 0.
struct OperandScale {
  float scale, inverse;
};

/// The scale that brings `maximum`, the largest magnitude, to `limit`.
__device__ __forceinline__ OperandScale ScaleTo(float limit, float maximum) {
  constexpr float kSmallestMaximum = 1e-30f;  // a smaller row is zero to any product
  if (!(maximum < INFINITY)) return {__int_as_float(0x7fffffff), 0};
  if (maximum < kSmallestMaximum) return {0, 0};
  return {maximum / limit, limit / maximum};
}

/// The scale of a group in e4m3. maximum: the bits of the largest magnitude.
__device__ __forceinline__ OperandScale F8GroupScaleOf(uint32_t maximum) {
  const int exponent = F8GroupExponent(maximum);
  return {__uint_as_float(F8GroupScale(exponent)), __uint_as_float(F8GroupInverse(exponent))};
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_OPERAND_SCALE_CUH_
