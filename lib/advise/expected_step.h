// The cost model of `auto`: what a decode step is expected to take with what a budget holds.
#ifndef MOERT_LIB_ADVISE_EXPECTED_STEP_H_
#define MOERT_LIB_ADVISE_EXPECTED_STEP_H_

#include "engine/blueprint.h"
#include "moert/source/expert_source.h"

namespace moert {

/// A decode step of one token, ms.
struct ExpectedTimes {
  double layers_ms = 0;
  double waits_ms = 0;
  double ms() const { return layers_ms + waits_ms; }
};

/// `low_share`: of the routing mass, that low versions may answer. `served`: a device answers
/// misses.
ExpectedTimes ExpectedStep(const ExpertSource& source, const Blueprint& b, double low_share,
                           bool served);

}  // namespace moert

#endif  // MOERT_LIB_ADVISE_EXPECTED_STEP_H_
