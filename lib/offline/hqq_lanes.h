// Vector versions of half-quadratic quantization's loops, a candidate scale a lane: every lane does
// what the scalar code does, in its order, so that results are the same to the bit.
#ifndef MOERT_LIB_OFFLINE_HQQ_LANES_H_
#define MOERT_LIB_OFFLINE_HQQ_LANES_H_

namespace moert {

inline constexpr int kMaxHqqLanes = 32;

/// The values of a group and the codes they may have; what all candidates share.
struct HqqGroup {
  const float* values;
  int count;
  float top;     // codes are 0..top
  float middle;  // symmetric: the code of zero
  double lp_norm, beta, kappa;
  int iterations;
};

/// What the proximal operator leaves of a residual above the threshold of this iteration.
float HqqShrink(float residual, double lp_norm, double beta);

/// As BestZero for each of `candidates` scales. zero: where it begins, then the best.
void HqqZerosAvx512(const HqqGroup& group, int candidates, const float* scale, float* zero);
/// As BestScale. scale: where it begins, then the best.
void HqqScalesAvx512(const HqqGroup& group, int candidates, float* scale);
/// errors[i]: the sum of squared errors under (scale[i], offset[i]); symmetric: offset is null.
void HqqErrorsAvx512(const HqqGroup& group, int candidates, const float* scale, const float* offset,
                     double* errors);

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_HQQ_LANES_H_
