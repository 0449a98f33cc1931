// Vector versions of what HQQ spends its time on: 16 groups at once, each on its own candidate and
// iteration. Declared apart from hqq.h: files compiled for an instruction set include no shared
// inline code.
#ifndef MOERT_LIB_OFFLINE_HQQ_LANES_H_
#define MOERT_LIB_OFFLINE_HQQ_LANES_H_

namespace moert {

/// Whether this processor runs the functions below. The answer never changes a result.
bool HasHqqLanes();

constexpr int kHqqLanes = 16;
constexpr int kMaxHqqCandidates = 32;

/// Groups of as many values each, and what is the same for all of them.
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

/// The candidates of each lane, in this order, and their results.
struct HqqCandidates {
  int count[kHqqLanes];   // 0: the lane has no group
  float span[kHqqLanes];  // of the group's values
  float scale[kMaxHqqCandidates][kHqqLanes];
  float zero[kMaxHqqCandidates][kHqqLanes];  // in codes
};

/// Takes what came of a lane's group, and gives the lane another one or none. A lane never waits
/// for the others' groups.
struct HqqQueue {
  void* context;
  void (*next)(void* context, int lane);
};

/// The proximal operator's value for a residual above the threshold of this iteration.
float HqqShrink(float residual, double lp_norm, double beta);

/// As BestZero for every candidate. zero: where it begins, then the best. Lowers `count` where no
/// later candidate can have the least error.
void HqqZerosAvx512(const HqqGroups& groups, HqqCandidates* candidates, const HqqQueue& queue);
/// As BestScale. scale: where it begins, then the best.
void HqqScalesAvx512(const HqqGroups& groups, HqqCandidates* candidates, const HqqQueue& queue);

/// errors[i]: the sum of squared errors of one group's values under (scale[i], offset[i]).
/// Symmetric: codes are around `middle`, and there is no offset.
void HqqErrorsAvx512(const float* values, int count, float top, float middle, bool symmetric,
                     const float* scale, const float* offset, int candidates, double* errors);

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_HQQ_LANES_H_
