// The search of rounding to nearest by vectors: all candidates' errors within bounds, then exactly
// those whose bounds allow them to be the least. The same candidate wins as in the scalar search,
// whose order and sums the exact errors keep.
#ifndef MOERT_LIB_OFFLINE_RTN_LANE_FIT_H_
#define MOERT_LIB_OFFLINE_RTN_LANE_FIT_H_

#include <cstdint>
#include <limits>

#include "absl/types/span.h"
#include "moert/scheme.h"
#include "offline/rtn.h"

namespace moert {

class LaneFit {
 public:
  /// All three outlive the object.
  LaneFit(const Scheme& scheme, absl::Span<const float> values, const RtnOptions& options);

  /// Whether this processor and these options allow it.
  static bool Can(absl::Span<const float> values, const RtnOptions& options);

  static constexpr int kMaxGrid = 128;  // candidates

  /// The best scale. False: the values are all 0, or out of the range that the bounds hold for, and
  /// nothing is said.
  bool Run(GroupScale* best);

 private:
  static constexpr int kChunk = 16;

  struct Bounds {
    float least, most;
  };

  bool Collect(float low, float high, int begin, int end);
  void BoundBelow(int begin, int end);
  Bounds Bound(int candidate) const;
  void Refine(int candidate);
  bool NoneBetterFrom(float low, float high) const;
  bool Choose(GroupScale* best);

  const Scheme& scheme_;
  const absl::Span<const float> values_;
  const RtnOptions& options_;
  const bool floats_;
  const float top_;       // of the codes, or of the magnitudes that floats have
  const float relative_;  // what approximate sums may be off
  int count_ = 0;         // candidates so far, without repeated ones
  GroupScale groups_[kMaxGrid];
  float unit_[kMaxGrid];   // scale^norm, the first candidate's being 1
  float least_[kMaxGrid];  // lower bounds of errors
  bool refined_[kMaxGrid];
  float bound_ = std::numeric_limits<float>::infinity();  // upper bound of the least error
};

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_RTN_LANE_FIT_H_
