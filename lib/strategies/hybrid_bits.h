// Transfers in the right number of bits (Fate Sec. 4.5), as a precision policy of a cache that
// serves two versions.
//
// Prefill brings the least popular experts of a layer, those that together serve at most a share
// rho of its token x expert pairs, in the low version; the others, and all that decode brings, in
// the high one (`miss_low`: but for what a decode step misses and waits for). Low copies are as
// good as high ones to prefill. To decode they are not, or they would serve it for as long as they
// are popular: it uses them once, and behind that call (`upgrade`) the high version takes their
// block, at the lowest priority.
#ifndef MOERT_LIB_STRATEGIES_HYBRID_BITS_H_
#define MOERT_LIB_STRATEGIES_HYBRID_BITS_H_

#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "moert/policy.h"

namespace moert {

struct HybridBitsOptions {
  double rho = 0.1;  // in [0, 1]
  bool miss_low = false;
  bool upgrade = true;
};

/// Whether `expert` is among those with the fewest `counts` [E] whose sum is at most the share rho
/// of all. Between equal ones the higher index counts as less popular. False where all are zero.
bool AmongLeastPopular(absl::Span<const int32_t> counts, int expert, double rho);

std::unique_ptr<PrecisionPolicy> MakeHybridBits(const HybridBitsOptions& options);

}  // namespace moert

#endif  // MOERT_LIB_STRATEGIES_HYBRID_BITS_H_
