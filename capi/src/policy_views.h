// The views of policies, in C.
#ifndef MOERT_CAPI_SRC_POLICY_VIEWS_H_
#define MOERT_CAPI_SRC_POLICY_VIEWS_H_

#include "moert.h"
#include "moert/policy.h"

namespace moert::capi {

moert_policy_context ToC(const PolicyContext& context);
moert_routing_view ToC(const RoutingView& routing);
moert_precision_snapshot ToC(const PrecisionSnapshot& snapshot,
                             const moert_policy_context* context);

}  // namespace moert::capi

#endif  // MOERT_CAPI_SRC_POLICY_VIEWS_H_
