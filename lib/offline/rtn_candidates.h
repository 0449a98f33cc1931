// The ranges that round-to-nearest tries for a group of weights, and the error of each.
#ifndef MOERT_LIB_OFFLINE_RTN_CANDIDATES_H_
#define MOERT_LIB_OFFLINE_RTN_CANDIDATES_H_

#include <vector>

#include "absl/types/span.h"
#include "moert/scheme.h"
#include "offline/rtn.h"

namespace moert {

/// For |x| < 2^22, to nearest even; the compiler would make a function call of nearbyint.
inline float NearestSmall(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
  return (x + kMagic) - kMagic;
}

/// The scale that spans [low, high], as it will be stored.
GroupScale Spanning(const Scheme& scheme, float low, float high);

/// `scale` as a scheme stores it.
float RoundScale(const Scheme& scheme, float scale);

/// Candidate `candidate` of `grid`: its range's share of the full one, from 1 down.
float RangeShare(const RtnOptions& options, int candidate, int grid);

/// t^norm, from a table for rounding errors t in steps, at most 1/2: the scalar search spends
/// nearly all of its time on this power.
class PowerTable {
 public:
  explicit PowerTable(double norm);
  float operator()(float t) const;

 private:
  const double norm_;
  std::vector<float> own_;
  const float* table_;
};

/// The exact sum of |error|^norm over a group; if it exceeds `limit`, any value above `limit`.
double GroupError(const Scheme& scheme, const GroupScale& group, absl::Span<const float> values,
                  const RtnOptions& options, const PowerTable& power, double limit);

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_RTN_CANDIDATES_H_
