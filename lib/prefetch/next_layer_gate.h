// The next layer's gate as predictor (Fate Sec. 4.2, 4.3): gate(l+1) on gate(l)'s input.
#ifndef MOERT_LIB_PREFETCH_NEXT_LAYER_GATE_H_
#define MOERT_LIB_PREFETCH_NEXT_LAYER_GATE_H_

#include <memory>

#include "moert/policy.h"

namespace moert {

struct NextLayerGateOptions {
  /// Decode: of each token the experts whose predicted score is above this percentile of all, in
  /// [0, 100), never fewer than the layer's k. 75 are 8 of 32 and 15 of 60 experts.
  double percentile = 75;
  /// Decode: this many of each token instead; 0: by percentile.
  int top = 0;
  /// Also predict the first layer of the next step from the last layer of this one.
  bool wrap = false;
};

/// Experts that the percentile rule selects of `experts`, ties aside.
int ExpertsAbovePercentile(int experts, double percentile);

/// Decode: the union of what tokens select. Prefill: whatever is in some token's predicted k; the
/// whole layer when all that is missing of it fits the window, which costs nothing and spares the
/// few misses of the prediction. Both in descending popularity, which is the number of tokens that
/// have the expert among their predicted k; of equals the higher sum of scores first.
std::unique_ptr<PrefetchPolicy> MakeNextLayerGate(const NextLayerGateOptions& options);

}  // namespace moert

#endif  // MOERT_LIB_PREFETCH_NEXT_LAYER_GATE_H_
