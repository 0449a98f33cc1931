// CalibratedGate: the next layer's gate as predictor (Fate Sec. 4.1), with measured probabilities
// that a prediction comes true instead of a percentile.
#ifndef MOERT_LIB_PREFETCH_CALIBRATED_GATE_H_
#define MOERT_LIB_PREFETCH_CALIBRATED_GATE_H_

#include <array>
#include <memory>

#include "moert/policy.h"
#include "rules/hit_curve.h"

namespace moert {

/// How often predicted experts were used, by the ratio of their predicted score to the token's k-th
/// best score.
class HitCurve {
 public:
  static constexpr int kBins = kHitBins;
  /// The bin of score / k-th score = ratio.
  static int Bin(float ratio) { return HitBin(ratio); }

  /// Adds a prediction in the bin, which came true (`used`) or not.
  void Add(int bin, bool used) { bins_[bin].Add(used ? 1 : 0, 1); }
  /// The probability that a prediction comes true. `prior` prevails while there are few samples.
  double Probability(int bin, double prior) const { return bins_[bin].Probability(prior); }
  /// The probability before there are samples.
  static float Guess(float ratio) { return GuessedHits(ratio); }

 private:
  std::array<HitCounts, kBins> bins_;
};

/// PrefetchRuleKind::kNextGate. Decode: ranks every expert by the probability that some token uses
/// it. Prefill: as MakeNextLayerGate. Probabilities are measured for each layer separately, on
/// experts that were absent when they were predicted, because present experts are used more often.
/// Predictions from the host's input (PrefetchRule::resident_forward), which are right more often,
/// are measured separately too.
std::unique_ptr<PrefetchPolicy> MakeCalibratedGate(const PrefetchRule& rule);

}  // namespace moert

#endif  // MOERT_LIB_PREFETCH_CALIBRATED_GATE_H_
