// SharedSlots: a cache whose slots belong to no layer.
#ifndef MOERT_LIB_STORE_SHARED_SLOTS_H_
#define MOERT_LIB_STORE_SHARED_SLOTS_H_

#include "moert/policy.h"

namespace moert {

/// What a residency policy is besides, whose layers share all slots: who comes takes the place of
/// the expert that is worth least, whatever its layer. Its Capacity then says only what each layer
/// may count on.
class SharedSlots {
 public:
  virtual ~SharedSlots() = default;
  /// The layer that gives up an expert for `incoming`; which one, Victim says. Negative: nobody, as
  /// `incoming` is worth less than whoever would leave, and `can_wait` for a block of its own call.
  virtual int Donor(ExpertKey incoming, bool can_wait) = 0;
};

}  // namespace moert

#endif  // MOERT_LIB_STORE_SHARED_SLOTS_H_
