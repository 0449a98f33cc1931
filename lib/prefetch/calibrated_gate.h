// CalibratedGate: the next layer's gate as predictor (Fate Sec. 4.1), with how often such
// predictions came true instead of a percentile.
#ifndef MOERT_LIB_PREFETCH_CALIBRATED_GATE_H_
#define MOERT_LIB_PREFETCH_CALIBRATED_GATE_H_

#include <array>
#include <memory>

#include "moert/policy.h"
#include "rules/hit_curve.h"

namespace moert {

/// How often experts were used that the gate predicted with such a score, by what the score is of
/// the token's k-th best.
class HitCurve {
 public:
  static constexpr int kBins = kHitBins;
  /// The bin of score / k-th score = ratio.
  static int Bin(float ratio) { return HitBin(ratio); }

  /// A prediction in the bin came true or not.
  void Add(int bin, bool used) { bins_[bin].Add(used ? 1 : 0, 1); }
  /// `prior` answers as far as little was seen.
  double Probability(int bin, double prior) const { return bins_[bin].Probability(prior); }
  /// Before anything was seen.
  static float Guess(float ratio) { return GuessedHits(ratio); }

 private:
  std::array<HitCounts, kBins> bins_;
};

/// PrefetchRuleKind::kNextGate. Decode: every expert with the probability that some token uses it,
/// best first. Prefill: as MakeNextLayerGate. A layer is measured by itself, on experts that were
/// absent when they were predicted: what is there is used more often than what is not. So are
/// predictions of the host's input (PrefetchRule::resident_forward), which are right more often.
std::unique_ptr<PrefetchPolicy> MakeCalibratedGate(const PrefetchRule& rule);

}  // namespace moert

#endif  // MOERT_LIB_PREFETCH_CALIBRATED_GATE_H_
