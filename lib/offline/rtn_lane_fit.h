// The search of round-to-nearest by vector instructions: first bounds of all candidates' errors,
// then the exact errors of those whose bounds allow them to be the least. The result is the scalar
// search's, because exact errors are computed in the same order with the same sums.
#ifndef MOERT_LIB_OFFLINE_RTN_LANE_FIT_H_
#define MOERT_LIB_OFFLINE_RTN_LANE_FIT_H_

#include <cstdint>
#include <limits>

#include "absl/types/span.h"
#include "moert/scheme.h"
#include "offline/rtn.h"
#include "offline/rtn_lanes.h"

namespace moert {

/// The possible error of an approximate sum of |error|^norm over this many values: relative, and
/// absolute per value, in steps (floats: in the largest values) of its range.
struct SumSlack {
  float relative, added;
};
SumSlack SlackOfSums(const Scheme& scheme, int64_t values);

class LaneFit {
 public:
  /// All outlive the object.
  LaneFit(const Scheme& scheme, absl::Span<const float> values, const RtnOptions& options,
          const RtnLanes& lanes);

  /// Whether the scheme and the options are supported.
  static bool Can(const Scheme& scheme, absl::Span<const float> values, const RtnOptions& options);

  /// Finds the best scale. False: the values are all 0, or outside of the range in which the bounds
  /// hold, and there is no result.
  bool Run(GroupScale* best);

 private:
  static constexpr int kMaxGrid = 128;  // candidates
  static constexpr int kMaxValues = 16384;

  const float* Shares(float* room) const;
  bool Begin(float first);
  bool BoundFloats(float low, float high);
  bool BoundIntegers(float low, float high, int outer);
  RtnRanges Ranges() const;
  int Likely() const;
  float Sum(int candidate) const;
  void Refine(int candidate);
  bool Choose(absl::Span<const int> candidates, GroupScale* best) const;

  const Scheme& scheme_;
  const absl::Span<const float> values_;
  const RtnOptions& options_;
  const RtnLanes& lanes_;
  const bool floats_;
  const float largest_;  // floats: of the magnitudes that codes have; otherwise 1
  const float bottom_;   // the lowest code
  const float span_;     // from there to the highest one
  const SumSlack slack_;
  float first_ = 0;        // the scale of the whole range
  int count_ = 0;          // candidates
  float scale_[kMaxGrid];  // as they will be stored
  float offset_[kMaxGrid];
  float unit_[kMaxGrid];         // scale^norm, the first candidate's being 1
  float least_[kMaxGrid];        // lower bounds of errors
  bool refined_[kMaxGrid] = {};  // the bound is as high as it gets
  float bound_ = std::numeric_limits<float>::infinity();  // upper bound of the least error
  float arranged_[kMaxValues];
};

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_RTN_LANE_FIT_H_
