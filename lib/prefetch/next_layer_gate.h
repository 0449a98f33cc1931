// The next layer's gate as predictor (Fate Sec. 4.2, 4.3): gate(l+1) on gate(l)'s input.
#ifndef MOERT_LIB_PREFETCH_NEXT_LAYER_GATE_H_
#define MOERT_LIB_PREFETCH_NEXT_LAYER_GATE_H_

#include <memory>

#include "moert/policy.h"

namespace moert {

struct NextLayerGateOptions {
  /// Decode: selects for each token the experts whose predicted score is above this percentile, in
  /// [0, 100), never fewer than the layer's k. 75 selects 8 of 32 and 15 of 60 experts.
  double percentile = 75;
  /// Decode: selects this many experts for each token instead; 0: by percentile.
  int top = 0;
  /// Also predict the first layer of the next step from the last layer of this one.
  bool wrap = false;
};

/// The number of experts that the percentile rule selects out of `experts`, without ties.
int ExpertsAbovePercentile(int experts, double percentile);

/// Decode: the union of the experts that the tokens select. Prefill: all experts among some token's
/// predicted k, or the whole layer if all its missing experts fit the window, which costs nothing
/// and avoids the few misses of the prediction. Both in descending order of popularity, the number
/// of tokens that have the expert among their predicted k; among equals the higher sum of scores
/// first.
std::unique_ptr<PrefetchPolicy> MakeNextLayerGate(const NextLayerGateOptions& options);

}  // namespace moert

#endif  // MOERT_LIB_PREFETCH_NEXT_LAYER_GATE_H_
