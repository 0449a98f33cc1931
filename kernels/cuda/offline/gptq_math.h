// One weight under a group's scale: its code and the value that the code stands for, bit-identical
// to RoundToCode and RestoreCode (lib/offline/rtn.h).
#ifndef MOERT_KERNELS_CUDA_OFFLINE_GPTQ_MATH_H_
#define MOERT_KERNELS_CUDA_OFFLINE_GPTQ_MATH_H_

#include "kernels/cuda/offline/rtn_math.h"

namespace moert::cuda {

struct RoundingForm {
  RangeForm::Codes codes;
  float top, middle;  // integers: codes are 0..top; symmetric: the code of zero
  float largest;      // floats: of the codes' magnitudes

  MOERT_FIT_FUNCTION bool floats() const {
    return codes == RangeForm::kF4 || codes == RangeForm::kF8;
  }
};

struct RoundedWeight {
  uint8_t code;
  float back;
};

/// The exponent and mantissa bits of a magnitude that the type can represent.
MOERT_FIT_FUNCTION uint8_t FloatCode(float magnitude, int mantissa, int lowest) {
  const uint32_t bits = BitsOf(magnitude);
  const int exponent = static_cast<int>(bits >> 23) - 127;
  if (exponent < lowest) {  // in steps of the lowest exponent; zero too
    return static_cast<uint8_t>(magnitude /
                                FloatOf(static_cast<uint32_t>(lowest - mantissa + 127) << 23));
  }
  const uint32_t fraction = (bits >> (23 - mantissa)) & ((1u << mantissa) - 1);
  return static_cast<uint8_t>((static_cast<uint32_t>(exponent - lowest + 1) << mantissa) |
                              fraction);
}

MOERT_FIT_FUNCTION RoundedWeight RoundFloat(const RoundingForm& form, float scale, float weight) {
  if (!(scale > 0)) return {0, scale * 0.0f};
  const bool f8 = form.codes == RangeForm::kF8;
  const int mantissa = f8 ? 3 : 1, lowest = f8 ? -6 : 0;
  const float value = weight / scale, magnitude = fabsf(value);
  const float inside = magnitude < form.largest ? magnitude : form.largest;
  const float step = StepAt(inside, mantissa, lowest);
  const float nearest = NearestWhole(inside / step) * step;
  const uint8_t code = FloatCode(nearest, mantissa, lowest);
  if (code == 0) return {0, scale * 0.0f};
  const bool negative = (BitsOf(value) >> 31) != 0;
  return {static_cast<uint8_t>(negative ? code | (f8 ? 0x80 : 0x8) : code),
          scale * (negative ? -nearest : nearest)};
}

MOERT_FIT_FUNCTION RoundedWeight RoundWeight(const RoundingForm& form, const Fit& fit,
                                             float weight) {
  if (form.floats()) return RoundFloat(form, fit.scale, weight);
  // A weight is scale * (code - zero) - before.
  const float zero = form.codes == RangeForm::kSymmetric    ? form.middle
                     : form.codes == RangeForm::kZeroPoints ? fit.offset
                                                            : 0.0f;
  const float before = form.codes == RangeForm::kOffsets ? fit.offset : 0.0f;
  const float code = fit.scale > 0
                         ? NearestWhole(Clamped((weight + before) / fit.scale + zero, 0, form.top))
                         : zero;
  return {static_cast<uint8_t>(code), fit.scale * (code - zero) - before};
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_OFFLINE_GPTQ_MATH_H_
