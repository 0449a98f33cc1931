// One candidate range of rounding to nearest (lib/offline/rtn_candidates.h): its scale is exact,
// its error known within bounds. The bounds mostly decide which candidate is the best; the CPU
// decides the rest.
#ifndef MOERT_KERNELS_CUDA_OFFLINE_RTN_MATH_H_
#define MOERT_KERNELS_CUDA_OFFLINE_RTN_MATH_H_

#include <cmath>

#include "kernels/cuda/offline/fit_math.h"

namespace moert::cuda {

struct RangeForm {
  static constexpr int kMost = 100;  // candidates

  enum Codes : int32_t { kSymmetric, kOffsets, kZeroPoints, kF4, kF8 };
  enum Scales : int32_t { kBf16, kF16, kF32, kPowersOfTwo, kE4M3 };

  Codes codes;
  Scales scales;
  float steps;         // from the lowest (kSymmetric: from the middle) to the highest code
  float span, middle;  // integers: codes are 0..span; the code of zero if that is fixed
  float largest;       // floats: of the codes' magnitudes
  int candidates;
  float shares[kMost];    // of the whole range
  float relative, added;  // bounds of a sum's error: relative, and added per value

  MOERT_FIT_FUNCTION bool floats() const { return codes == kF4 || codes == kF8; }
};

/// |x|^2.4 within a relative 3e-6.
MOERT_FIT_FUNCTION float Power24(float x) { return exp2f(2.4f * log2f(fabsf(x))); }

// The step between neighbouring values of a float type of few bits at a magnitude.
MOERT_FIT_FUNCTION float StepAt(float magnitude, int mantissa, int lowest) {
  const int exponent = static_cast<int>(BitsOf(magnitude) >> 23) - 127;
  return FloatOf(static_cast<uint32_t>((exponent > lowest ? exponent : lowest) - mantissa + 127)
                 << 23);
}

/// A scale as it is stored. NaN where only the CPU can decide.
MOERT_FIT_FUNCTION float StoredScale(RangeForm::Scales type, float scale) {
  constexpr float kLeastF16 = 6.103515625e-5f, kMostF16 = 65504, kMostE4M3 = 448;
  const uint32_t bits = BitsOf(scale);
  switch (type) {
    case RangeForm::kBf16:
      return NearestBf16(scale);
    case RangeForm::kF16:
      if (!(scale >= kLeastF16 && scale <= kMostF16)) return Undecided().scale;
      return FloatOf((bits + 0xfffu + ((bits >> 13) & 1u)) & 0xffffe000u);
    case RangeForm::kF32:
      return scale;
    case RangeForm::kPowersOfTwo: {  // rounded up; just above a power, the CPU's logarithm decides
      const uint32_t mantissa = bits & 0x7fffffu, exponent = bits >> 23;
      const bool near = mantissa > 0 && mantissa <= 0x100u;
      if (near || exponent < 2 || exponent > 240) return Undecided().scale;
      return FloatOf((exponent + (mantissa > 0 ? 1u : 0u)) << 23);
    }
    case RangeForm::kE4M3: {  // ties go to the lower one
      const float x = scale < kMostE4M3 ? scale : kMostE4M3;
      const float step = StepAt(x, 3, -6);
      const float whole = floorf(x / step);
      return (x / step - whole > 0.5f ? whole + 1 : whole) * step;
    }
  }
  return Undecided().scale;
}

/// The scale and zero that span a share of [low, high], as they will be stored.
MOERT_FIT_FUNCTION Fit SpanningFit(const RangeForm& form, float low, float high, float share) {
  low *= share;
  high *= share;
  const float most = -low > high ? -low : high;
  switch (form.codes) {
    case RangeForm::kSymmetric:
      return {StoredScale(form.scales, most / form.steps), 0};
    case RangeForm::kOffsets:
      return {StoredScale(form.scales, (high - low) / form.steps), NearestBf16(-low)};
    case RangeForm::kZeroPoints: {
      const float scale = StoredScale(form.scales, (high - low) / form.steps);
      const float zero = -low / scale;  // -0 stays
      return {scale, Clamped(copysignf(NearestWhole(zero), zero), 0, form.steps)};
    }
    case RangeForm::kF4:
    case RangeForm::kF8:
      return {StoredScale(form.scales, most / form.largest), 0};
  }
  return Undecided();
}

/// The sum of |error|^2.4, in units of the fit's own step (floats: of its largest value).
MOERT_FIT_FUNCTION float ErrorInSteps(const RangeForm& form, const Fit& fit, const float* values,
                                      int count) {
  constexpr int kPart = 16;  // partial sums lose less precision
  const float inverse = 1 / fit.scale;
  const float zero = form.codes == RangeForm::kOffsets      ? fit.offset * inverse
                     : form.codes == RangeForm::kZeroPoints ? fit.offset
                                                            : form.middle;
  const int mantissa = form.codes == RangeForm::kF8 ? 3 : 1;
  const int lowest = form.codes == RangeForm::kF8 ? -6 : 0;
  float sum = 0;
  for (int begin = 0; begin < count; begin += kPart) {
    const int end = begin + kPart < count ? begin + kPart : count;
    float part = 0;
    for (int i = begin; i < end; ++i) {
      float error;
      if (form.floats()) {
        const float magnitude = fabsf(values[i]) * inverse;
        const float inside = magnitude < form.largest ? magnitude : form.largest;
        const float step = StepAt(inside, mantissa, lowest);
        error = fit.scale * (NearestWhole(inside / step) * step) - fabsf(values[i]);
        error *= inverse / form.largest;
      } else {
        const float place = values[i] * inverse + zero;
        error = place - NearestWhole(Clamped(place, 0, form.span));
      }
      part += Power24(error);
    }
    sum += part;
  }
  return sum;
}

/// An error and how much it may be off.
struct RtnError {
  float error, slack;
};

/// The error in units that all candidates share; `first`: the first candidate's scale. Infinite:
/// not a candidate.
MOERT_FIT_FUNCTION RtnError ErrorOfRange(const RangeForm& form, const Fit& fit, float first,
                                         const float* values, int count) {
  if (!(fit.scale > 0)) return {HUGE_VALF, 0};
  const float unit = Power24(fit.scale / first);
  const float sum = ErrorInSteps(form, fit, values, count);
  return {unit * sum, unit * (sum * form.relative + form.added * static_cast<float>(count))};
}

/// Whether the bounds hold for a group with this first candidate's scale, and for one of its
/// candidates.
MOERT_FIT_FUNCTION bool CanFitRtn(float first) { return first > 1e-28f && first < 1e28f; }
MOERT_FIT_FUNCTION bool CanFitRtn(const RangeForm& form, const Fit& fit) {
  return Decided(fit) && (fit.scale > 1e-30f || (form.floats() && fit.scale == 0));
}

/// Whether a candidate may be better than the best one, within their bounds. One with the same bits
/// is not: either will do.
MOERT_FIT_FUNCTION bool MayBeBetter(const RtnError& error, const Fit& fit, const RtnError& best,
                                    const Fit& best_fit) {
  const bool same =
      BitsOf(fit.scale) == BitsOf(best_fit.scale) && BitsOf(fit.offset) == BitsOf(best_fit.offset);
  return !same && error.error - error.slack <= best.error + best.slack;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_OFFLINE_RTN_MATH_H_
