// One candidate scale of half-quadratic quantization (lib/offline/hqq.h), iterated to its end.
#ifndef MOERT_KERNELS_CUDA_OFFLINE_HQQ_MATH_H_
#define MOERT_KERNELS_CUDA_OFFLINE_HQQ_MATH_H_

#include "kernels/cuda/offline/fit_math.h"

namespace moert::cuda {

struct HqqForm {
  static constexpr int kMost = 32;  // candidates, iterations

  bool symmetric;
  float top;     // codes are 0..top
  float middle;  // symmetric: the code of zero
  int candidates;
  int iterations;
  float shares[kMost];      // of each candidate: its share of the scale that spans the group
  float thresholds[kMost];  // of each iteration: larger residuals are outliers
};

struct HqqCandidate {
  float scale, zero;  // zero in codes; symmetric schemes have none
  float best;         // the best zero (or symmetric scale) of the iterations so far
  double least;       // its sum of |residual|
  int iteration;
  bool outliers;  // one was seen: the result is not the CPU's
};

/// Begins a candidate. Returns false if there is nothing to try.
MOERT_FIT_FUNCTION bool BeginHqq(const HqqForm& form, float low, float high, int candidate,
                                 HqqCandidate* c) {
  const float share = form.shares[candidate];
  c->least = HUGE_VAL;
  c->iteration = 0;
  c->outliers = false;
  if (form.symmetric) {
    const float most = -low > high ? -low : high;
    c->scale = most / (form.middle - 1) * share;
    c->zero = 0;
    c->best = c->scale;
  } else {
    c->scale = NearestBf16((high - low) * share / form.top);
    c->zero = -low * share / c->scale;
    c->best = c->zero;
  }
  return c->scale > 0;
}

/// One iteration over the group's values. Returns false if it was the last one.
template <bool kSymmetric>
MOERT_FIT_FUNCTION bool IterateHqq(const HqqForm& form, const float* values, int count,
                                   HqqCandidate* c) {
  const float inverse = 1 / c->scale, threshold = form.thresholds[c->iteration];
  double absolute = 0, sum = 0, squares = 0;
  bool within = true;
  for (int i = 0; i < count; ++i) {
    const float value = values[i], place = value * inverse;
    float residual;
    if (kSymmetric) {
      const float code = NearestWhole(Clamped(place + form.middle, 0, form.top)) - form.middle;
      residual = value - code * c->scale;
      sum += double{code} * double{value};
      squares += double{code} * double{code};
    } else {
      const float code = NearestWhole(Clamped(place + c->zero, 0, form.top));
      residual = value - (code - c->zero) * c->scale;
      sum += double{code - place};
    }
    const float magnitude = fabsf(residual);
    within = within && magnitude <= threshold;
    absolute += double{magnitude};
  }
  if (!within) c->outliers = true;
  if (!within || !(absolute < c->least)) return false;
  c->least = absolute;
  float* const moving = kSymmetric ? &c->scale : &c->zero;
  c->best = *moving;
  if (kSymmetric && !(squares > 0)) return false;
  const float next = static_cast<float>(sum / (kSymmetric ? squares : static_cast<double>(count)));
  if (next == *moving || (kSymmetric && !(next > 0))) return false;
  *moving = next;
  return ++c->iteration < form.iterations;
}

/// A candidate's result, as it will be stored. A scale of 0: it cannot be stored.
MOERT_FIT_FUNCTION Fit StoredHqq(const HqqForm& form, const HqqCandidate& c) {
  const float scale = NearestBf16(form.symmetric ? c.best : c.scale);
  const float offset = form.symmetric ? 0 : NearestBf16(c.best * c.scale);
  if (!(scale > 0) || !IsFinite(scale) || !IsFinite(offset)) return {0, 0};
  return {scale, offset};
}

/// The sum of squared errors under a fit.
MOERT_FIT_FUNCTION double HqqError(const HqqForm& form, const Fit& fit, const float* values,
                                   int count) {
  const float inverse = 1 / fit.scale, zero = form.symmetric ? form.middle : fit.offset * inverse;
  const float before = form.symmetric ? form.middle : 0;
  double sum = 0;
  for (int i = 0; i < count; ++i) {
    const float code = NearestWhole(Clamped(values[i] * inverse + zero, 0, form.top));
    const double error = double{(fit.scale * (code - before) - fit.offset) - values[i]};
    sum += error * error;
  }
  return sum;
}

/// Whether a group with these extremes can be searched here. Zeros among them may have either sign.
MOERT_FIT_FUNCTION bool CanFitHqq(float low, float high) {
  return high > low && low != 0 && high != 0;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_OFFLINE_HQQ_MATH_H_
