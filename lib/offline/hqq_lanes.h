// Vector versions of HQQ's costly loops: 16 groups at once, each at its own candidate and
// iteration. Declared apart from hqq.h: files compiled for an instruction set include no shared
// inline code.
#ifndef MOERT_LIB_OFFLINE_HQQ_LANES_H_
#define MOERT_LIB_OFFLINE_HQQ_LANES_H_

namespace moert {

/// Whether this processor can run the functions below. The choice never changes a result.
bool HasHqqLanes();

constexpr int kHqqLanes = 16;
constexpr int kMaxHqqCandidates = 32;

/// Groups with equal numbers of values, and the parameters they share.
struct HqqGroups {
  const float* values;    // [count][kHqqLanes], a group a lane
  const double* doubles;  // the same; symmetric schemes
  int count;
  float top;     // codes are 0..top
  float middle;  // symmetric: the code of zero
  double lp_norm;
  int iterations;
  const double* betas;      // of each iteration
  const float* thresholds;  // residuals up to here are no outliers, of each iteration
};

/// The candidates of each lane, in order, and their results.
struct HqqCandidates {
  int count[kHqqLanes];   // 0: the lane has no group
  float span[kHqqLanes];  // of the group's values
  float scale[kMaxHqqCandidates][kHqqLanes];
  float zero[kMaxHqqCandidates][kHqqLanes];  // in codes
};

/// Takes the result of a lane's group, and gives the lane another group or none. No lane waits for
/// the groups of others.
struct HqqQueue {
  void* context;
  void (*next)(void* context, int lane);
};

/// The proximal operator's value for a residual above the threshold of this iteration.
float HqqShrink(float residual, double lp_norm, double beta);

/// Like BestZero for every candidate. zero: the initial value, then the best. Lowers `count` if no
/// later candidate can have the least error.
void HqqZerosAvx512(const HqqGroups& groups, HqqCandidates* candidates, const HqqQueue& queue);
/// Like BestScale. scale: the initial value, then the best.
void HqqScalesAvx512(const HqqGroups& groups, HqqCandidates* candidates, const HqqQueue& queue);

/// errors[i]: the sum of squared errors of one group's values under (scale[i], offset[i]).
/// Symmetric: codes are around `middle`, and there is no offset.
void HqqErrorsAvx512(const float* values, int count, float top, float middle, bool symmetric,
                     const float* scale, const float* offset, int candidates, double* errors);

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_HQQ_LANES_H_
