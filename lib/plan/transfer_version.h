// Which version a transfer into a cache of several brings: the precision policy's choice, checked.
#ifndef MOERT_LIB_PLAN_TRANSFER_VERSION_H_
#define MOERT_LIB_PLAN_TRANSFER_VERSION_H_

#include <cstdint>

#include "absl/types/span.h"
#include "moert/policy.h"

namespace moert {

/// Index into the served versions. `counts` [E]: tokens of every expert of the layer, true or
/// predicted. `resident` >= 0: the version that is there and may be replaced. Without a policy, and
/// for an illegal answer, which is counted in *fallbacks: what is there, else 0, the best.
int TransferVersion(PrecisionPolicy* policy, const PolicyContext& context, ExpertKey key,
                    absl::Span<const int32_t> counts, bool prefetch, int num_versions,
                    int64_t* fallbacks, int resident = -1);

}  // namespace moert

#endif  // MOERT_LIB_PLAN_TRANSFER_VERSION_H_
