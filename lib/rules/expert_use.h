// How much the next calls of a layer will want each of its experts, on the host and on a device:
// the means behind UseEstimate (store/residency/use_estimate.h), the sums behind average-score
// (store/residency/average_score.cc).
#ifndef MOERT_LIB_RULES_EXPERT_USE_H_
#define MOERT_LIB_RULES_EXPERT_USE_H_

#include <cstdint>

#include "rules/host_device.h"

namespace moert {

/// Means over the calls of a layer, for one expert.
struct ExpertUse {
  static constexpr int kLatest = 2, kRecent = 32, kLasting = 512;  // calls

  double score = 0;    // k times the expert's score, over the latest calls
  double recent = 0;   // share of tokens that chose the expert, over recent calls
  double lasting = 0;  // the same over many calls
  int64_t chosen = 0;  // the last call that chose it; 0: none

  /// An estimate of the share of one-token calls that use the expert. The weights were fitted to
  /// recorded calls of two models over calibration texts.
  MOERT_HOST_DEVICE double Worth() const { return 0.3 * score + 0.4 * recent + 0.3 * lasting; }

  /// A call of a layer. Its quotients are in fp32, which takes less code on a device. They can be
  /// computed before the call is routed.
  struct Call {
    int64_t number = 0;  // from 1
    float share = 0;     // 1 / number
    float token = 0;     // 1 / tokens

    MOERT_HOST_DEVICE static Call Of(int64_t number, int64_t tokens) {
      return {number, 1.0F / static_cast<float>(number), 1.0F / static_cast<float>(tokens)};
    }
    /// The call's weight in a mean over the last `most` calls.
    MOERT_HOST_DEVICE double Weight(int most) const {
      return number < most ? static_cast<double>(share) : 1.0 / most;
    }
  };

  /// Adds a call in which `count` tokens chose the expert. `scores`: k times the sum of its scores
  /// (NaN does not count).
  MOERT_HOST_DEVICE void Add(const Call& call, int32_t count, double scores) {
    const double token = call.token, used = count * token;
    const double scored = scores == scores ? scores * token : used;
    score += call.Weight(kLatest) * (scored - score);
    recent += call.Weight(kRecent) * (used - recent);
    lasting += call.Weight(kLasting) * (used - lasting);
    if (count > 0) chosen = call.number;
  }
};

/// Whether an expert that no call waits for may evict one that is worth `leaving`: only if it is
/// clearly worth more. Otherwise experts of about equal worth would keep replacing each other.
MOERT_HOST_DEVICE inline bool ClearlyWorthMore(double incoming, double leaving) {
  constexpr double kMargin = 0.2;
  return incoming > (1 + kMargin) * leaving;
}

/// The sum of an expert's scores over the latest calls of a layer. A ring of `window` rows
/// [experts] keeps every call's scores until they leave the sum.
struct ScoreSums {
  /// The expert's mean score over a call's tokens, whose scores are `experts` apart. scores null:
  /// the routing was given without scores, so this is the share of tokens that chose the expert.
  MOERT_HOST_DEVICE static float Of(const float* scores, int experts, int64_t tokens,
                                    int32_t count) {
    const float all = static_cast<float>(tokens);
    if (scores == nullptr) return static_cast<float>(count) / all;
    float sum = 0;
    for (int64_t t = 0; t < tokens; ++t) sum += scores[t * experts];
    return sum / all;
  }
  /// Replaces the oldest score in a sum. `oldest`: the expert's place in the call's row. NaN counts
  /// as 0, because it would never leave the sum.
  MOERT_HOST_DEVICE static void Add(float score, float* oldest, double* sum) {
    const float kept = score == score ? score : 0;
    *sum += static_cast<double>(kept) - static_cast<double>(*oldest);
    *oldest = kept;
  }
  /// The row of the call that follows `calls` earlier ones.
  MOERT_HOST_DEVICE static int64_t Row(int64_t calls, int window) { return calls % window; }
  /// The mean after `calls` calls, in the unit of ExpertUse::Worth.
  MOERT_HOST_DEVICE static double Worth(double sum, int top_k, int64_t calls, int window) {
    const int64_t seen = calls < window ? calls : window;
    return seen == 0 ? 0 : top_k * sum / static_cast<double>(seen);
  }
};

}  // namespace moert

#endif  // MOERT_LIB_RULES_EXPERT_USE_H_
