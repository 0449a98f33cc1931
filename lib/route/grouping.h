// Fills in the fields of a routing that are derived from its ids and weights.
#ifndef MOERT_LIB_ROUTE_GROUPING_H_
#define MOERT_LIB_ROUTE_GROUPING_H_

#include "moert/policy.h"
#include "moert/router.h"

namespace moert {

/// Fills counts, offsets and grouped_* from ids; a slot of id -1 is in no group.
void GroupByExpert(RoutingResult* routing);

/// Fills the fields about substitution of a grouped routing that is the model's own choice.
void NoteOwnChoice(const LayerResidency& residency, RoutingResult* routing);

}  // namespace moert

#endif  // MOERT_LIB_ROUTE_GROUPING_H_
