// Which version a transfer into a cache of several brings: the precision policy's choice, checked.
#ifndef MOERT_LIB_PLAN_TRANSFER_VERSION_H_
#define MOERT_LIB_PLAN_TRANSFER_VERSION_H_

#include <cstdint>

#include "absl/types/span.h"
#include "moert/policy.h"

namespace moert {

/// Index into the served versions; 0, the best, where `policy` is null. `counts` [E]: tokens of
/// every expert of the layer, true or predicted. An illegal answer becomes 0 and is counted in
/// *fallbacks.
int TransferVersion(PrecisionPolicy* policy, const PolicyContext& context, ExpertKey key,
                    absl::Span<const int32_t> counts, bool prefetch, int num_versions,
                    int64_t* fallbacks);

}  // namespace moert

#endif  // MOERT_LIB_PLAN_TRANSFER_VERSION_H_
