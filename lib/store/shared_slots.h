// SharedSlots: a cache whose slots belong to no layer.
#ifndef MOERT_LIB_STORE_SHARED_SLOTS_H_
#define MOERT_LIB_STORE_SHARED_SLOTS_H_

#include "moert/policy.h"

namespace moert {

/// Optional policy extension: one slot pool for all layers. A new expert replaces the one that is
/// worth least, whatever its layer.
class SharedSlots {
 public:
  virtual ~SharedSlots() = default;
  /// Whether they are shared now; else each layer has those that Capacity gave it.
  virtual bool Shares() const = 0;
  /// The layer that gives up an expert; which one, Victim says. `for_call`: to the layer call that
  /// was routed last, which has to wait; then what it has used itself may leave, if it is not read
  /// any more. Negative: none.
  virtual int Donor(bool for_call) = 0;
};

/// The policy's extension for shared slots. Null: it has none, or there is no policy.
inline SharedSlots* SharedSlotsOf(ResidencyPolicy* policy) {
  return dynamic_cast<SharedSlots*>(policy);
}

}  // namespace moert

#endif  // MOERT_LIB_STORE_SHARED_SLOTS_H_
